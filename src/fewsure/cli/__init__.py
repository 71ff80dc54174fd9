"""The command line. Each command is a module here, with its help as docstring and a function `main(arguments)`.

`main.py` imports a command when it is called. A command imports what does the work once its arguments are read, unless
its options need it: `--help` and a wrong option then answer at once.
"""
