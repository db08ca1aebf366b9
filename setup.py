"""The part of the metadata that is made: README.md without links into the repository, which lead
nowhere on the page of a package."""

import re
from pathlib import Path

from setuptools import setup

README = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
LOCAL_LINK = re.compile(r"!?\[([^\]]+)\]\((?!https?:)[^)]+\)")

setup(
    long_description=LOCAL_LINK.sub(r"\1", README),
    long_description_content_type="text/markdown",
)
