"""The file that `spark-submit` runs in place of an application, which is its first argument."""

import runpy

vars(runpy)["_run_module_as_main"]("headgate.infra.start", False)
