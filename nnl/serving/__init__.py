# SPDX-License-Identifier: Apache-2.0
"""Language models behind HTTP: requests come in as JSON, texts go out as they are written.

`application` has the routes, `Scheduler` lets many texts be written side by side.
"""
