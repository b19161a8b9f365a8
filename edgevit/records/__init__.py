"""What lies on disk, without torch: typed reading of JSON and YAML, locks, hashes, and writing whole or not at all.

documents  read a JSON or YAML file into a typed record; every fault of a file becomes one line
lock       one process at a time in a folder
pictures   any picture as RGB, 8 bits a channel
writing    folders and files that are there whole or not at all
"""
