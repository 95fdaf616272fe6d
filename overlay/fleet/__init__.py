"""One picture of all workers: what each of them publishes of itself, and what follows from it.

`status.py` is the record that a worker writes to the topic `<prefix>.fleet`, `changes.py` chooses which
consumers it tells of, and `publisher.py` writes it. `memory.py` folds statuses into rows, `findings.py`
judges the rows, and `picture.py` is what `/fleet` answers. These know nothing of Faust, which only
`app.py` imports: the Faust application of `overlay fleet run` (docs/fleet.md).
"""
