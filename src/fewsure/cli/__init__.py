"""The command line. Each command is a module here, with its help as docstring and a function `main(arguments)`.

`main.py` imports a command when it is called. A command reads its arguments before it imports the modules that do the
work, unless its options need them. So `--help` and a wrong option answer at once.
"""
