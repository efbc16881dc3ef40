"""VeriSilicon's network binary graphs (``.nb``): the file, and the capture that is made of it."""
