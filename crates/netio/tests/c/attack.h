/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What a reader could try with memory that it is to read only. Says on stdout what it could do. */
#include <stdio.h>

static const char *outcome(int failed)
{
	return failed ? strerror(errno) : "done";
}

static void attack_memory(int memory_fd, uint64_t length)
{
	char path[64];
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd, 0);
	printf("map: %s\n", outcome(memory == MAP_FAILED));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", memory_fd);
	int again = open(path, O_RDWR);
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
	printf("map reopened: %s\n", outcome(memory == MAP_FAILED));
	memory = mmap(NULL, length, PROT_READ, MAP_SHARED, memory_fd, 0);
	printf("protect: %s\n", outcome(mprotect(memory, length, PROT_READ | PROT_WRITE) < 0));
	/* EPERM, or EINVAL where the pages are huge. */
	printf("write: %s\n", pwrite(memory_fd, "x", 1, 0) < 0 ? "refused" : "done");
	printf("truncate: %s\n", outcome(ftruncate(memory_fd, 0) < 0));
}
