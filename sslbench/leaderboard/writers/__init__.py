"""Writers of a board: terminal, CSV, Markdown, LaTeX, HTML, plots."""
