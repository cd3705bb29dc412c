"""What a recording shows in a notebook: the explorer's page, whose questions the kernel answers.

`shows.py` decides what a cell gets; `widget.py` is the page through anywidget, `answering.py` the
kernel's side of its messages, `frame.py` a page that asks no kernel.
"""
