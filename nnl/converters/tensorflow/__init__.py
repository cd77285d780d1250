# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's graphs: frozen ones (.pb), checkpoints, and folders of saved models.

None of it needs TensorFlow: `messages.tsv` has the messages, `table` reads and writes the tables
that checkpoints are.
"""
