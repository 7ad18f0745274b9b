/* Two copies of libfabric in one process, each private, as when an application mixes wheels: each has its own provider
 * structure, parameters and log of ours, though the provider is mapped once.
 *
 *     copies LIBFABRIC ANOTHER_COPY
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <rdma/fabric.h>

static void *symbol(void *lib, const char *name)
{
	void *p = dlsym(lib, name);
	if (!p) {
		fprintf(stderr, "%s: %s\n", name, dlerror());
		exit(1);
	}
	return p;
}

static void use(void *lib)
{
	int (*getinfo)(uint32_t, const char *, const char *, uint64_t, const struct fi_info *, struct fi_info **) =
		symbol(lib, "fi_getinfo");
	void (*freeinfo)(struct fi_info *) = symbol(lib, "fi_freeinfo");
	int (*getparams)(struct fi_param **, int *) = symbol(lib, "fi_getparams");
	void (*freeparams)(struct fi_param *) = symbol(lib, "fi_freeparams");
	int (*open_fabric)(struct fi_fabric_attr *, struct fid_fabric **, void *) = symbol(lib, "fi_fabric");
	struct fi_info *info = NULL;
	struct fi_param *params = NULL;
	struct fid_fabric *fabric;
	int count = 0, ours = 0;
	int ret = getinfo(FI_VERSION(1, 17), NULL, NULL, 0, NULL, &info);
	if (ret || info->next || strcmp(info->fabric_attr->prov_name, "rustmx")) {
		fprintf(stderr, "fi_getinfo: %d\n", ret);
		exit(1);
	}
	if ((ret = open_fabric(info->fabric_attr, &fabric, NULL)) || (ret = fi_close(&fabric->fid))) {
		fprintf(stderr, "fi_fabric: %d\n", ret);
		exit(1);
	}
	freeinfo(info);
	getparams(&params, &count);
	for (int i = 0; i < count; i++)
		ours += !strncmp(params[i].name, "FI_RUSTMX_", 10);
	freeparams(params);
	if (ours < 5) {
		fprintf(stderr, "only %d parameters of ours are listed\n", ours);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	void *lib[2];
	for (int i = 0; i < 2; i++) {
		if (i + 1 >= argc || !(lib[i] = dlopen(argv[i + 1], RTLD_NOW | RTLD_LOCAL))) {
			fprintf(stderr, "%s\n", i + 1 < argc ? dlerror() : "two paths, please");
			return 1;
		}
		use(lib[i]);
	}
	if (lib[0] == lib[1]) {
		fprintf(stderr, "that is one copy\n");
		return 1;
	}
	use(lib[0]);
	printf("OK\n");
	return 0;
}
