NAME = "netpipe"
PARTS = {}
LEFT_OUT_OF_ALL = ()
