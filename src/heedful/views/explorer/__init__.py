"""The explorer: one page that shows a recording, and what answers its questions.

`texts.py` are the maps that a page may choose from, `handlers.py` the numbers that it may ask for,
`tiles.py` how a map of any length is shown at any zoom; `wire.py` puts numbers
into bytes. The hosts stand above: `server.py` answers a browser. `page/` is the page itself.
"""
