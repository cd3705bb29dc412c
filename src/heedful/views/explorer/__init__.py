"""The explorer: an interactive page on recordings, and the handlers of its requests.

`catalogue.py` lists the recordings, texts and calls; `handlers.py` answers the requests of a page;
`tiles.py` computes a map at any zoom; `wire.py` is the binary format of responses. `server.py`
serves the page, and `one_file.py` writes it to a file. `page/` is the page's JavaScript and CSS.
"""
