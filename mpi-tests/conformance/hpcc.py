NAME = "hpcc"
PARTS = {}
LEFT_OUT_OF_ALL = ()
