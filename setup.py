"""Metadata lives in setup.cfg; this file is where the optional C kernel (image/tiles) gets built."""

from setuptools import setup

setup()
