"""A call as it is kept, proved, asked, saved and opened again."""
