"""The one option of the build that depends on the Python: the stable ABI."""

import sysconfig

from setuptools import setup

# A free-threaded Python has none before 3.15. There the kernel is not built, and NumPy takes over.
stable = not sysconfig.get_config_var("Py_GIL_DISABLED")
setup(options={"bdist_wheel": {"py_limited_api": "cp311"}} if stable else {})
