"""What an Orin's owner runs once and sends back: how networks of many shapes run there, without data or weights.

`suite` says which networks, and which question each is there for; `run` builds and measures them, question by question,
each in turns with the dense network; `record` is the file that comes of it; `published` what others found on such
boards; `answers` what the figures say.
"""
