"""Recordings in a notebook: the explorer's page in a cell, with numbers from the kernel.

`display.py` chooses the output of a cell; `widget.py` is the page as an anywidget;
`kernel_side.py` handles the page's messages in the kernel.
"""
