"""The package map, which TOML cannot express: two top-level folders ship inside specverify."""

from setuptools import find_packages, setup

MAPPED = ("properties", "fixtures")

setup(
    package_dir={f"specverify.{folder}": folder for folder in MAPPED},
    packages=[
        *find_packages(include=["specverify", "specverify.*"]),
        *(
            f"specverify.{package}"
            for folder in MAPPED
            for package in find_packages(include=[folder, f"{folder}.*"])
        ),
    ],
)
