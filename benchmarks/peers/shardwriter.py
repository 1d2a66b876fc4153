"""What people write today: walk an ImageFolder tree and feed `webdataset.ShardWriter`, one sample at a time.

Usage: shardwriter.py TREE OUT
"""

import os
import sys

import webdataset

tree, out = sys.argv[1:]
os.makedirs(out, exist_ok=True)
classes = sorted(entry.name for entry in os.scandir(tree) if entry.is_dir())
with webdataset.ShardWriter(os.path.join(out, "train-%06d.tar"), maxsize=256e6, maxcount=100_000, verbose=0) as sink:
    for label, name in enumerate(classes):
        for file in sorted(os.listdir(os.path.join(tree, name))):
            with open(os.path.join(tree, name, file), "rb") as image:
                data = image.read()
            sink.write({"__key__": f"{name}/{os.path.splitext(file)[0]}", "jpg": data, "cls": label})
