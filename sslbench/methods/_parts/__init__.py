"""Parts that several methods share: losses, heads, momentum networks, masks, memory banks and patches."""
