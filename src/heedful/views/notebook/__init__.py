"""What a recording shows in a notebook: the explorer's page, whose questions the kernel answers.

`display.py` decides what a cell gets; `widget.py` is the page through anywidget, `kernel_side.py`
the kernel's side of its messages.
"""
