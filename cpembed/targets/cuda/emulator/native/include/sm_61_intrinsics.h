/* Everything is in executor.h, which is included before a text. */
