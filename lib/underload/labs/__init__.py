"""What the labs' tasks start from: stored measurements, checks that say what is wrong with a value, pictures.

One module a lab, named as the lab's file is, and `answers`, which all of them share. Torch-free: a lab's set-up cell
brings the real decoder.
"""
