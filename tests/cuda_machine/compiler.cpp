// The emulated libnvrtc: hands a kernel's own source to g++, with kernel.h (CUDA's words, ptx.h) before it.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

namespace {
struct Program {
    std::string source, name, log, image;
    std::map<std::string, std::string> headers;
};

// `extern __shared__ T name[];` becomes a pointer into the module's arena, no more aligned than it says.
std::string dynamic_shared(const std::string &text) {
    static const std::regex form(R"((?:alignas\s*\(([^)]*)\)\s*)?extern\s+__shared__\s+)"
                                 R"((?:(?:alignas|__align__)\s*\(([^)]*)\)\s*)?([\w:]+(?:\s+[\w:]+)*?)\s+)"
                                 R"((?:(?:alignas|__align__)\s*\(([^)]*)\)\s*)?(\w+)\s*\[\s*\]\s*;)");
    std::string result;
    auto last = text.cbegin();
    for (std::sregex_iterator at(text.begin(), text.end(), form), end; at != end; ++at) {
        const std::smatch &m = *at;
        const std::string align = m[1].length() ? m[1] : m[2].length() ? m[2] : m[4].length() ? m[4] : std::string();
        const std::string type = m[3];
        result.append(last, m[0].first);
        result += type + " *const " + m[5].str() + " = (" + type + " *)machine_dynamic<" +
                  (align.empty() ? "(alignof(" + type + ") > 16 ? alignof(" + type + ") : 16)" : align) + ">();";
        last = m[0].second;
    }
    return result.append(last, text.cend());
}

size_t closing(const std::string &text, size_t open) {
    int depth = 0;
    for (size_t i = open; i < text.size(); ++i) {
        if (text[i] == '(') ++depth;
        if (text[i] == ')' && !--depth) return i;
    }
    return text.size();
}

// MACHINE_ENTRY(name, launch bounds) for each kernel.
std::string entries(const std::string &text) {
    std::string result = "\n";
    for (size_t at = text.find("__global__"); at != std::string::npos; at = text.find("__global__", at + 1)) {
        const size_t comment = text.rfind("//", at), line = text.rfind('\n', at);
        if (comment != std::string::npos && (line == std::string::npos || comment > line)) continue;
        size_t i = at + 10;
        std::string bounds = "0", word;
        while (i < text.size()) {
            while (i < text.size() && !(isalnum((unsigned char)text[i]) || text[i] == '_' || text[i] == '(')) ++i;
            if (text[i] == '(') break;
            const size_t begin = i;
            while (i < text.size() && (isalnum((unsigned char)text[i]) || text[i] == '_')) ++i;
            const std::string next = text.substr(begin, i - begin);
            if (next == "__launch_bounds__" || next == "__cluster_dims__") {
                const size_t open = text.find('(', i), close = closing(text, open);
                if (next == "__launch_bounds__") bounds = text.substr(open + 1, close - open - 1);
                i = close + 1;
            } else {
                word = next;
            }
        }
        result += "MACHINE_ENTRY(" + word + ", " + bounds + ")\n";
    }
    return result;
}

std::string folder_of_this() {
    Dl_info info;
    dladdr((void *)&folder_of_this, &info);
    const std::string path = info.dli_fname;
    return path.substr(0, path.rfind('/'));
}

void write(const std::string &path, const std::string &text) {
    std::ofstream(path, std::ios::binary) << text;
}

std::string read(const std::string &path) {
    std::ifstream file(path, std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    return all.str();
}

std::string quoted(const std::string &text) {
    std::string result = "'";
    for (char c : text) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return result + "'";
}

std::string output(const std::string &command) {
    std::string result;
    char part[256];
    FILE *pipe = popen(command.c_str(), "r");
    while (pipe && fgets(part, sizeof part, pipe)) result += part;
    if (pipe) pclose(pipe);
    return result;
}

bool has_fma() {
#ifdef __x86_64__
    return __builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}
const int known[] = {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 120};
} // namespace

API int nvrtcVersion(int *major, int *minor) {
    *major = 12;
    *minor = 9;
    return 0;
}
API int nvrtcGetNumSupportedArchs(int *count) {
    *count = sizeof known / sizeof *known;
    return 0;
}
API int nvrtcGetSupportedArchs(int *all) {
    memcpy(all, known, sizeof known);
    return 0;
}
API const char *nvrtcGetErrorString(int status) {
    return status == 0 ? "NVRTC_SUCCESS" : status == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR_INVALID_INPUT";
}
API int nvrtcCreateProgram(Program **result, const char *source, const char *name, int count,
                           const char *const *headers, const char *const *names) {
    *result = new Program{source, name ? name : "default_program", "", "", {}};
    for (int i = 0; i < count; ++i) (*result)->headers[names[i]] = headers[i];
    return 0;
}
API int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return 0;
}
API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    std::string macros, arch = "sm_90";
    for (int i = 0; i < count; ++i) {
        std::string option = options[i];
        for (const char *prefix : {"--gpu-architecture=", "-arch="})
            if (option.rfind(prefix, 0) == 0) arch = option.substr(strlen(prefix));
        if (option.rfind("--define-macro=", 0) == 0) option = "-D" + option.substr(15);
        if (option.rfind("-D", 0) == 0) { // defined after kernel.h, whose names are its own
            const size_t equals = std::min(option.find('='), option.size());
            macros += "#define " + option.substr(2, equals - 2) + " " +
                      (equals < option.size() ? option.substr(equals + 1) : "1") + "\n";
        }
    }
    int number = 0;
    char special = 0;
    sscanf(arch.c_str(), "%*[^_]_%d%c", &number, &special);
    macros +=
        "#define __CUDA_ARCH__ " + std::to_string(number * 10) + "\n#define __CUDACC_RTC__ 1\n#define __CUDACC__ 1\n";
    if (special == 'a') macros += "#define __CUDA_ARCH_FEAT_SM" + std::to_string(number) + "_ALL 1\n";
    const char *compiler = getenv("CXX"), *more = getenv("CUDA_MACHINE_CXXFLAGS"), *keep = getenv("CUDA_MACHINE_KEEP");
    const std::string here = folder_of_this(), common = here + "/kernel.h";
    const std::string wrapped =
        "extern \"C\" __attribute__((visibility(\"default\"))) const char machine_architecture[] = \"" + arch +
        "\";\n" + macros + "#line 1 \"" + program->name + "\"\n" + dynamic_shared(program->source) +
        entries(program->source);
    const std::string with = std::string("export CCACHE_DISABLE=1; ") + (compiler ? compiler : "g++") + " ";
    // Kernels are many and run briefly: -O1 compiles them in less time.
    std::string flags = "-std=c++17 -O1 -fPIC -fvisibility=hidden -fno-gnu-unique -ffp-contract=off "
                        "-fno-strict-aliasing -fno-exceptions -fno-stack-protector -w -Wfatal-errors ";
    if (has_fma()) flags += "-mfma -mavx2 ";
    // each load and store calls the machine, not libtsan, against which nothing is linked
    const char *watched = getenv("CUDA_MACHINE_RACES");
    if (watched && *watched && *watched != '0') flags += "-fsanitize=thread --param=tsan-instrument-func-entry-exit=0 ";
    if (more) flags += std::string(more) + " ";
    // The folder of this machine has the kernels that were compiled before, by all that their images depend on.
    static const std::string version = output(with + "--version");
    std::string all = version + with + flags + wrapped;
    for (const auto &header : program->headers) all += '\0' + header.first + '\0' + header.second;
    const std::string known_image = here + "/images/" + std::to_string(std::hash<std::string>()(all));
    program->log = "ptxas info    : 0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
                   "ptxas info    : Used 1 registers, 0 bytes smem\n"; // what ptxas says of a real one
    program->image = keep ? "" : read(known_image);
    if (!program->image.empty()) return 0;
    char folder[] = "/tmp/cuda-machine-XXXXXX";
    if (!mkdtemp(folder)) return 2;
    const std::string at = folder, image = at + "/kernel.so", object = at + "/kernel.o";
    write(at + "/kernel.cpp", wrapped);
    for (const auto &header : program->headers) {
        // those that are emulated are empty already, by their guards
        write(at + "/" + header.first, dynamic_shared(header.second));
    }
    // g++ looks in the folder kernel.h.gch for a precompiled kernel.h that was made with the same flags.
    const std::string precompiled = common + ".gch/" + std::to_string(std::hash<std::string>()(with + flags));
    if (access(precompiled.c_str(), F_OK)) {
        const std::string made = here + strrchr(folder, '/');
        mkdir((common + ".gch").c_str(), 0700);
        if (system(
                (with + flags + "-x c++-header -o " + quoted(made) + " " + quoted(common) + " 2>/dev/null").c_str()) ||
            rename(made.c_str(), precompiled.c_str()))
            unlink(made.c_str()); // g++ reads kernel.h itself
    }
    const std::string log = quoted(at + "/log");
    const std::string command = with + flags + "-c -I" + quoted(here) + " -I" + quoted(at) + " -include " +
                                quoted(common) + " -o " + quoted(object) + " " + quoted(at + "/kernel.cpp") + " >" +
                                log + " 2>&1 && " + with + "-shared -nostdlib -Wl,-Bsymbolic -o " + quoted(image) +
                                " " + quoted(object) + " " + quoted(here + "/libcuda.so.1") + " -lgcc >>" + log +
                                " 2>&1";
    const int status = system(command.c_str());
    if (status) {
        program->log = read(at + "/log");
    } else {
        program->image = read(image);
        const std::string made = here + strrchr(folder, '/');
        mkdir((here + "/images").c_str(), 0700);
        write(made, program->image);
        rename(made.c_str(), known_image.c_str());
    }
    if (!keep) {
        for (const auto &header : program->headers) unlink((at + "/" + header.first).c_str());
        for (const char *file : {"/kernel.cpp", "/kernel.o", "/kernel.so", "/log"}) unlink((at + file).c_str());
        rmdir(folder);
    }
    return status ? 6 : 0;
}
API int nvrtcGetProgramLogSize(Program *program, size_t *size) {
    *size = program->log.size() + 1;
    return 0;
}
API int nvrtcGetProgramLog(Program *program, char *log) {
    memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}
API int nvrtcGetCUBINSize(Program *program, size_t *size) {
    *size = program->image.size();
    return 0;
}
API int nvrtcGetCUBIN(Program *program, char *image) {
    memcpy(image, program->image.data(), program->image.size());
    return 0;
}
API int nvrtcGetPTXSize(Program *program, size_t *size) {
    return nvrtcGetCUBINSize(program, size);
}
API int nvrtcGetPTX(Program *program, char *image) {
    return nvrtcGetCUBIN(program, image);
}
