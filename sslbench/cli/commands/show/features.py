USED: set[str] = set()
REASONS: dict[str, str] = {}
