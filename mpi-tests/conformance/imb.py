NAME = "imb"
PARTS = {}
LEFT_OUT_OF_ALL = ()
