/* SPDX-License-Identifier: Apache-2.0 */
/* The library from C: says which digit an image shows, one of those that numpy.save has written.
 *
 *   classify lenet.nnlp x_test.npy 5 */
#include <stdio.h>
#include <stdlib.h>

#include "nnl/nnl.h"

static int fail(const char* what, const char* why) {
  fprintf(stderr, "classify: error: %s: %s\n", what, why);
  return 1;
}

/* Reads image number `index` of a file of images of this size. */
static int read_image(const char* path, long index, const nnl_tensor* x) {
  FILE* file = fopen(path, "rb");
  if (!file) return 0;
  unsigned char head[10];
  int good = fread(head, 1, sizeof head, file) == sizeof head;
  if (good) {
    const long begin = 10 + head[8] + 256L * head[9]; /* after the header of numpy */
    good = fseek(file, begin + index * (long)x->bytes, SEEK_SET) == 0 &&
           fread(x->data, 1, x->bytes, file) == x->bytes;
  }
  fclose(file);
  return good;
}

static int run(const nnl_file* file, const char* images, long index, nnl_model** model) {
  nnl_tensor x, y;
  if (nnl_make(file, "classify", model) || nnl_get(*model, NNL_INPUT, 0, &x) ||
      nnl_get(*model, NNL_OUTPUT, 0, &y))
    return fail("classify", nnl_error());
  if (!read_image(images, index, &x)) return fail(images, "there is no such image");
  if (nnl_run(*model)) return fail("classify", nnl_error());
  const float* values = (const float*)y.data;
  size_t best = 0;
  for (size_t i = 1; i < y.bytes / sizeof(float); ++i)
    if (values[i] > values[best]) best = i;
  printf("nnl %s: image %ld shows a %d, with %.1f %%\n", nnl_version(), index, (int)best,
         100.0 * values[best]);
  return 0;
}

int main(int argc, char** argv) {
  if (argc != 4) {
    fprintf(stderr, "usage: classify FILE.nnlp IMAGES.npy NUMBER\n");
    return 2;
  }
  nnl_file* file = NULL;
  nnl_model* model = NULL;
  if (nnl_open(argv[1], &file)) return fail(argv[1], nnl_error());
  const int code = run(file, argv[2], atol(argv[3]), &model);
  nnl_free(model);
  nnl_close(file);
  return code;
}
