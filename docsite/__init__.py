"""The site of the documents, which `make docs` builds: its pages, and two references made from the code."""
