"""The file that `spark-submit` runs in place of an application, which is its first argument."""

import runpy

runpy.run_module("headgate.infra.start", run_name="__main__", alter_sys=True)
