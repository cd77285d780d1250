// SPDX-License-Identifier: Apache-2.0
// The version of the library, by the rules of semver.org. What was built for one minor version runs
// with all its patches; before 1.0 a minor version may change anything.
#pragma once

#define NNL_VERSION_MAJOR 0
#define NNL_VERSION_MINOR 1
#define NNL_VERSION_PATCH 0
