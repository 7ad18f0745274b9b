// C++ through operator new, over-aligned types, containers, threads, exceptions.
#include <cstdint>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

struct alignas(256) Wide {
	char bytes[20000];
};

static void work(int n)
{
	std::map<int, std::string> map;
	for (int i = 0; i < 2000; i++)
		map[i * n] = std::string(i * 10 % 30000, 'a' + i % 26);
	for (auto &[key, text] : map)
		for (char c : text)
			if (c != 'a' + key / n % 26)
				throw std::runtime_error("a string has changed");
	std::vector<Wide> wide(30);
	for (auto &w : wide)
		if (reinterpret_cast<std::uintptr_t>(&w) % 256)
			throw std::runtime_error("alignment");
	std::vector<int> grows;
	for (int i = 0; i < 1000000; i++)
		grows.push_back(i);
	for (int i = 0; i < 1000000; i++)
		if (grows[i] != i)
			throw std::runtime_error("a vector has changed");
}

int main()
{
	std::vector<std::thread> threads;
	for (int i = 1; i < 4; i++)
		threads.emplace_back(work, i);
	for (auto &t : threads)
		t.join();
	try {
		auto p = std::make_unique<char[]>(SIZE_MAX / 4);
		std::printf("%p\n", static_cast<void *>(p.get()));
	} catch (const std::bad_alloc &) {
		std::puts("ok");
	}
}
