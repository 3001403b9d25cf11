"""The one command, `lmlab`: a table of verbs, each a thin call into a package below."""
