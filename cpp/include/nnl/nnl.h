/* SPDX-License-Identifier: Apache-2.0 */
/* Run programs from C, and from every language that calls C.
 *
 *   nnl_file* file;
 *   nnl_model* model;
 *   nnl_tensor x, y;
 *   if (nnl_open("lenet.nnlp", &file) || nnl_make(file, NULL, &model)) fail(nnl_error());
 *   nnl_get(model, NNL_INPUT, 0, &x);
 *   memcpy(x.data, pixels, x.bytes);
 *   if (nnl_run(model)) fail(nnl_error());
 *   nnl_get(model, NNL_OUTPUT, 0, &y);
 *
 * Functions that can fail return 0, or another number with the reason in nnl_error(). A model runs
 * in one thread at a time, and nnl_run fails where another thread runs it; different ones may run
 * at once, also those of one file. */
#ifndef NNL_NNL_H
#define NNL_NNL_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NNL_C __attribute__((visibility("default")))

typedef struct nnl_file nnl_file;   /* programs, and the arrays that they share */
typedef struct nnl_model nnl_model; /* one of them, ready to run */

typedef enum nnl_status {
  NNL_OK = 0,
  NNL_WRONG = 1,   /* a value, name, shape or file that is not taken */
  NNL_MEMORY = 2,  /* there is not enough memory */
  NNL_INTERNAL = 3 /* an error of nnl's own */
} nnl_status;

typedef enum nnl_role { NNL_INPUT = 0, NNL_OUTPUT = 1 } nnl_role;

typedef enum nnl_dtype {
  NNL_FLOAT32 = 0,
  NNL_FLOAT64 = 1,
  NNL_FLOAT16 = 2,
  NNL_BFLOAT16 = 3,
  NNL_INT8 = 4,
  NNL_UINT8 = 5,
  NNL_INT16 = 6,
  NNL_UINT16 = 7,
  NNL_INT32 = 8,
  NNL_UINT32 = 9,
  NNL_INT64 = 10,
  NNL_UINT64 = 11,
  NNL_BOOL = 12
} nnl_dtype;

/* What it points to lives as long as the model or file; shape and data until others are bound, or
 * sizes change. */
typedef struct nnl_tensor {
  const char* name;
  nnl_dtype dtype;
  size_t rank;
  const int64_t* shape;
  size_t bytes;
  void* data;
} nnl_tensor;

/* An axis of an input: an open size by its name and range, or NULL and one size. */
typedef struct nnl_axis {
  const char* name;
  int64_t least, greatest, multiple; /* both bounds are allowed */
} nnl_axis;

NNL_C const char* nnl_version(void); /* "0.1.0" */

/* Why the latest call of this thread that failed did so; "" if none has. */
NNL_C const char* nnl_error(void);

/* How many threads runs and models that begin from now on use. */
NNL_C nnl_status nnl_set_threads(int count);

/* Maps a file. What training steps write stays in memory; the file never changes. */
NNL_C nnl_status nnl_open(const char* path, nnl_file** file);
NNL_C void nnl_close(nnl_file* file); /* its models may go on */

NNL_C size_t nnl_program_count(const nnl_file* file);
NNL_C const char* nnl_program_name(const nnl_file* file, size_t index); /* NULL: there is none */

/* Parameters, to and from .safetensors, .h5 and .protobuf. */
NNL_C nnl_status nnl_save_parameters(const nnl_file* file, const char* path);
NNL_C nnl_status nnl_load_parameters(nnl_file* file, const char* path);

/* program may be NULL where the file has one. */
NNL_C nnl_status nnl_make(const nnl_file* file, const char* program, nnl_model** model);
NNL_C void nnl_free(nnl_model* model);

NNL_C size_t nnl_count(const nnl_model* model, nnl_role role);
NNL_C nnl_status nnl_get(const nnl_model* model, nnl_role role, size_t index, nnl_tensor* tensor);
/* The place of an input or output by its name. */
NNL_C nnl_status nnl_find(const nnl_model* model, nnl_role role, const char* name, size_t* index);
/* Lets the model read or write your memory instead of its own; it must stay there. Where sizes are
 * open, there may be more than is needed now: the room for other sizes. */
NNL_C nnl_status nnl_bind(nnl_model* model, nnl_role role, size_t index, void* data, size_t bytes);
/* Where a program has open sizes: another shape of an input for the next runs, which does not keep
 * its elements; nnl_get tells where they are now, and after a run or nnl_prepare the shapes of the
 * outputs. nnl_prepare makes ready for new sizes what the first run at these would. */
NNL_C nnl_status nnl_get_axis(const nnl_model* model, size_t index, size_t axis, nnl_axis* found);
NNL_C nnl_status nnl_resize(nnl_model* model, size_t index, const int64_t* shape, size_t rank);
NNL_C nnl_status nnl_prepare(nnl_model* model);
NNL_C nnl_status nnl_run(nnl_model* model);

#ifdef __cplusplus
}
#endif
#endif
