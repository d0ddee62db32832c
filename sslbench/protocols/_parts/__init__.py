"""Parts that several protocols share: checks of features, hold-outs and folds by group, few-shot draws."""
