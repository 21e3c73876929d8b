"""The wheel carries libtailwater.so: it is for one platform, and for every Python 3 on it. `make wheel` builds both."""

import os
import platform

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "src", "tailwater", "libtailwater.so")


class WithLibrary(Distribution):
    """What has a library of one platform belongs where extension modules do."""

    def has_ext_modules(self):
        return True


class PlatformWheel(bdist_wheel):
    """A wheel for every Python 3 of this platform."""

    def run(self):
        if not os.path.exists(LIBRARY):
            raise SystemExit(f"{LIBRARY} is not there: `make wheel` puts it there")
        super().run()

    def get_tag(self):
        # The library needs the C library of the machine that it was linked on, or a later one, and nothing else.
        name, version = platform.libc_ver()
        machine = platform.machine()
        if name == "glibc":
            major, minor = version.split(".")[:2]
            return "py3", "none", f"manylinux_{major}_{minor}_{machine}"
        return "py3", "none", f"linux_{machine}"


setup(distclass=WithLibrary, cmdclass={"bdist_wheel": PlatformWheel})
