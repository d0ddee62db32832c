"""Solvers: logistic regression, squared-hinge SVMs and nearest neighbours on arrays, free of files and protocols."""
