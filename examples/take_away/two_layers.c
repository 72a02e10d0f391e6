/* Two layers of a perceptron, each a library of its own, called one after the other.

   The hidden layer stores bytes, (sum + bias) * scale rounded and at least 0, which the second one
   multiplies again; its sums are the scores. Both are compared with plain loops. */

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "hidden.h"
#include "scores.h"

enum { BATCH = 8, INPUTS = 256, HIDDEN = 128, SCORES = 10 };

/* Aligned to 64 bytes: used by the libraries without a copy. */
static _Alignas(64) uint8_t image[BATCH][INPUTS], between[BATCH][HIDDEN];
static _Alignas(64) int8_t first[INPUTS][HIDDEN], second[HIDDEN][SCORES];
static _Alignas(64) int32_t bias[HIDDEN], found[BATCH][SCORES];
static _Alignas(64) float scale[HIDDEN];

static void require(int status, const char *text) {
  if (status == CPEMBED_OK) return;
  fprintf(stderr, "%s\n", text);
  exit(1);
}

static void fill(void) {
  for (int k = 0; k < BATCH * INPUTS; k++) image[k / INPUTS][k % INPUTS] = (uint8_t)rand();
  for (int k = 0; k < INPUTS * HIDDEN; k++) first[k / HIDDEN][k % HIDDEN] = (int8_t)rand();
  for (int k = 0; k < HIDDEN * SCORES; k++) second[k / SCORES][k % SCORES] = (int8_t)rand();
  for (int k = 0; k < HIDDEN; k++) bias[k] = rand() % 1000 - 500;
  for (int k = 0; k < HIDDEN; k++) scale[k] = 0.0008f;
}

/* How many of the scores are not what plain loops compute. */
static int wrong_scores(void) {
  int wrong = 0;
  for (int m = 0; m < BATCH; m++) {
    int32_t stored[HIDDEN];
    for (int n = 0; n < HIDDEN; n++) {
      int32_t sum = bias[n];
      for (int k = 0; k < INPUTS; k++) sum += image[m][k] * first[k][n];
      stored[n] = (int32_t)rintf(fminf(fmaxf((float)sum * scale[n], 0), 255));
    }
    for (int n = 0; n < SCORES; n++) {
      int32_t sum = 0;
      for (int k = 0; k < HIDDEN; k++) sum += stored[k] * second[k][n];
      wrong += sum != found[m][n];
    }
  }
  return wrong;
}

int main(void) {
  hidden_handle *hidden;
  scores_handle *scores;
  int status = hidden_open(0, NULL, &hidden);
  require(status, hidden_status_text(status));
  status = scores_open(0, NULL, &scores);
  require(status, scores_status_text(status));

  fill();
  const void *first_weights[] = {first, bias, scale}, *second_weights[] = {second};
  status = hidden_pack(hidden, first_weights);
  require(status, hidden_status_text(status));
  status = scores_pack(scores, second_weights);
  require(status, scores_status_text(status));

  const void *inputs[] = {image}, *stored[] = {between};
  void *outputs[] = {between}, *results[] = {found};
  status = hidden_run(hidden, inputs, outputs, NULL);
  require(status, hidden_status_text(status));
  status = scores_run(scores, stored, results, NULL);
  require(status, scores_status_text(status));

  int wrong = wrong_scores();
  printf("%s: the first score is %d\n", wrong ? "WRONG" : "OK", found[0][0]);
  hidden_close(hidden);
  scores_close(scores);
  return wrong != 0;
}
