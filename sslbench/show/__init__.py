"""Pictures of features and predictions: PNG sheets and one HTML page, for `sslbench show`."""
