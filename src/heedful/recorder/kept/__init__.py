"""A call as it is kept, proved, asked, saved and opened again.

Three things prove a map. `certificate` compares numbers with the output that the model used;
`verification` runs each text alone, which shows whose rows are whose; `proof` is the word for both.
"""
