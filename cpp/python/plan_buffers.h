// SPDX-License-Identifier: Apache-2.0
// What plans do before a run to the buffers of many slots. nnl/ext/library.py says more (HostPlan).
#pragma once
#include <nanobind/nanobind.h>

#include "nnl/plan.h"

nanobind::list bind_arrays(nnl::Plan& plan, const nanobind::list& given,
                           const nanobind::list& slots, const nanobind::dict& views,
                           const nanobind::dict& held, const nanobind::dict& seen,
                           const nanobind::dict& holders);

void renew_buffers(nnl::Plan& plan, const nanobind::list& slots, const nanobind::list& buffers);
