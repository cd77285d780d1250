// SPDX-License-Identifier: Apache-2.0
// Everything that networks are written and trained with.
#pragma once
#include "nnl/functions.h"
#include "nnl/initializer.h"
#include "nnl/network.h"
#include "nnl/parametric_functions.h"
#include "nnl/solvers.h"
#include "nnl/variable.h"
