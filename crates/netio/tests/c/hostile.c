/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * A reader that breaks every rule: tries to write the UMEM, returns packets twice, returns what it never had, and
 * at last moves an index where it cannot be. Says on stdout what it could do. `hostile SOCKET COUNT [talk]`
 */
#include <expressway/umem.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *outcome(int failed)
{
	return failed ? strerror(errno) : "done";
}

static void attack_memory(int umem, uint64_t length)
{
	char path[64];
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, umem, 0);
	printf("map: %s\n", outcome(memory == MAP_FAILED));
	snprintf(path, sizeof(path), "/proc/self/fd/%d", umem);
	int again = open(path, O_RDWR);
	memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED, again, 0);
	printf("map reopened: %s\n", outcome(memory == MAP_FAILED));
	memory = mmap(NULL, length, PROT_READ, MAP_SHARED, umem, 0);
	printf("protect: %s\n", outcome(mprotect(memory, length, PROT_READ | PROT_WRITE) < 0));
	/* EPERM, or EINVAL where the pages are huge. */
	printf("write: %s\n", pwrite(umem, "x", 1, 0) < 0 ? "refused" : "done");
	printf("truncate: %s\n", outcome(ftruncate(umem, 0) < 0));
}

int main(int argc, char **argv)
{
	struct expressway_reader reader = {.fd = -1};
	struct expressway_hello hello;
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int descriptors[2] = {-1, -1};

	if (argc < 3)
		return 2;
	strncpy(address.sun_path, argv[1], sizeof(address.sun_path) - 1);
	reader.fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(reader.fd, (struct sockaddr *)&address, sizeof(address)) < 0 ||
	    expressway_receive_hello(reader.fd, &hello, descriptors) < 0 ||
	    expressway_set_up(&reader, &hello, descriptors) < 0)
		return 1;
	attack_memory(descriptors[0], hello.umem_length);

	long left = atol(argv[2]);
	while (left > 0 && expressway_wait(&reader, -1) >= 0) {
		/* What was lent, once more, beyond the end, and somebody else's. */
		struct expressway_loan loans[5];
		if (expressway_receive(&reader, loans, 1) == 0)
			continue;
		loans[1] = loans[0];
		loans[2] = loans[3] = loans[4] = loans[0];
		loans[2].addr = UINT64_MAX;
		loans[3].addr = hello.umem_length;
		loans[4].addr = (loans[0].addr + hello.umem_length / 2) % hello.umem_length;
		/* Not more than the ring has room for: that is for the end. */
		while (reader.returned + 5 - atomic_load(&reader.returns->consumer) > reader.entries)
			usleep(100);
		expressway_return(&reader, loans, 5);
		left--;
	}
	while (reader.returned != atomic_load(&reader.returns->consumer))
		usleep(100);
	if (argc > 3)
		send(reader.fd, "?", 1, MSG_NOSIGNAL);
	else
		atomic_store(&reader.returns->producer, reader.returned + 0x10000);
	while (expressway_wait(&reader, -1) >= 0)
		;
	printf("dismissed\n");
	return 0;
}
