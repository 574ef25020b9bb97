"""Callbacks for the training loops of other libraries, which are imported only when their module here is."""
