"""Parts that several methods share: heads, momentum networks, crops, Sinkhorn iterations, checks."""
