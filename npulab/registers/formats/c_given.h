// What headers of drivers take from others: types, words and macros, each given where a file uses it
// and does not say it itself. Bits as Linux, CMSIS and NVIDIA's tools place them.

typedef signed char s8;
typedef signed char __s8;
typedef signed char int8_t;
typedef signed char int_least8_t;
typedef signed char int8;
typedef short s16;
typedef short __s16;
typedef short int16_t;
typedef short int_least16_t;
typedef short int16;
typedef int s32;
typedef int __s32;
typedef int int32_t;
typedef int int_least32_t;
typedef int int32;
typedef long long s64;
typedef long long __s64;
typedef long long int64_t;
typedef long long int_least64_t;
typedef long long int64;
typedef unsigned char u8;
typedef unsigned char __u8;
typedef unsigned char __le8;
typedef unsigned char uint8_t;
typedef unsigned char uint_least8_t;
typedef unsigned char uint8;
typedef unsigned char BYTE;
typedef unsigned char UINT8;
typedef unsigned char uchar;
typedef unsigned char u_char;
typedef unsigned short u16;
typedef unsigned short __u16;
typedef unsigned short __le16;
typedef unsigned short uint16_t;
typedef unsigned short uint_least16_t;
typedef unsigned short uint16;
typedef unsigned short WORD;
typedef unsigned short UINT16;
typedef unsigned short ushort;
typedef unsigned short u_short;
typedef unsigned int u32;
typedef unsigned int __u32;
typedef unsigned int __le32;
typedef unsigned int uint32_t;
typedef unsigned int uint_least32_t;
typedef unsigned int uint32;
typedef unsigned int DWORD;
typedef unsigned int UINT32;
typedef unsigned int uint;
typedef unsigned int u_int;
typedef unsigned long long u64;
typedef unsigned long long __u64;
typedef unsigned long long __le64;
typedef unsigned long long uint64_t;
typedef unsigned long long uint_least64_t;
typedef unsigned long long uint64;
typedef unsigned long long QWORD;
typedef unsigned long long UINT64;
typedef unsigned long long ulong;
typedef unsigned long long u_long;
typedef unsigned long long size_t;
typedef unsigned long long uintptr_t;
typedef unsigned long long dma_addr_t;
typedef unsigned long long phys_addr_t;
typedef unsigned long long resource_size_t;
typedef long ssize_t;
typedef long ptrdiff_t;
typedef long intptr_t;
typedef long off_t;
typedef long time_t;
typedef long loff_t;
typedef __fp16 _Float16_t;

#define __iomem
#define __user
#define __rcu
#define __force
#define __bitwise
#define __percpu
#define __must_check
#define __maybe_unused
#define __nonstring
#define __private
#define __extension__
#define __BEGIN_DECLS
#define __END_DECLS
#define STATIC
#define __IO volatile
#define __I volatile
#define __O volatile
#define __IM volatile
#define __OM volatile
#define __IOM volatile
#define __packed __attribute__((packed))
#define __aligned(x) __attribute__((aligned(x)))
#define __aligned_u64 unsigned long long __attribute__((aligned(8)))
#define __counted_by(x)
#define __counted_by_le(x)
#define __LITTLE_ENDIAN_BITFIELD 1
#define __LITTLE_ENDIAN 1234
#define LITTLE_ENDIAN 1234
#define __BYTE_ORDER 1234
#define BYTE_ORDER 1234
#define _MK_ADDR_CONST(x) (x)
#define _MK_MASK_CONST(x) (x)
#define _MK_SHIFT_CONST(x) (x)
#define _MK_ENUM_CONST(x) (x)
#define _MK_FIELD_CONST(m, s) ((m) << (s))
#define offsetof(t, m) __builtin_offsetof(t, m)
#define INT_MAX 0x7fffffff
#define INT_MIN (-0x7fffffff - 1)
#define UINT_MAX 0xffffffffu
#define UINT8_MAX 0xff
#define UINT16_MAX 0xffff
#define UINT32_MAX 0xffffffffu
#define U8_MAX 0xff
#define U16_MAX 0xffff
#define U32_MAX 0xffffffffu
#define INT32_MAX 0x7fffffff
#define SHRT_MAX 0x7fff
#define USHRT_MAX 0xffff
#define LONG_MAX 0x7fffffffffffffffl
#define ULLONG_MAX (~0ull)
#define UINT64_MAX (~0ull)
#define U64_MAX (~0ull)
#define PAGE_SIZE 4096
#define SZ_1 0x1
#define SZ_2 0x2
#define SZ_4 0x4
#define SZ_8 0x8
#define SZ_16 0x10
#define SZ_32 0x20
#define SZ_64 0x40
#define SZ_128 0x80
#define SZ_256 0x100
#define SZ_512 0x200
#define SZ_1K 0x400
#define SZ_2K 0x800
#define SZ_4K 0x1000
#define SZ_8K 0x2000
#define SZ_16K 0x4000
#define SZ_32K 0x8000
#define SZ_64K 0x10000
#define SZ_128K 0x20000
#define SZ_256K 0x40000
#define SZ_512K 0x80000
#define SZ_1M 0x100000
#define SZ_2M 0x200000
#define SZ_4M 0x400000
#define SZ_8M 0x800000
#define SZ_16M 0x1000000
#define SZ_32M 0x2000000
#define SZ_64M 0x4000000
#define SZ_128M 0x8000000
#define SZ_256M 0x10000000
#define SZ_512M 0x20000000
#define SZ_1G 0x40000000
#define SZ_2G 0x80000000
#define BIT(n) (1ull << (n))
#define BIT_ULL(n) (1ull << (n))
#define BIT_MASK(n) (1ull << (n))
#define BIT_U8(n) (1ull << (n))
#define BIT_U16(n) (1ull << (n))
#define BIT_U32(n) (1ull << (n))
#define BIT_U64(n) (1ull << (n))
#define _BITUL(n) (1ull << (n))
#define _BITULL(n) (1ull << (n))
#define REG_BIT(n) (1ull << (n))
#define REG_BIT64(n) (1ull << (n))
#define GENMASK(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define GENMASK_ULL(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define GENMASK_U8(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define GENMASK_U16(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define GENMASK_U32(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define GENMASK_U64(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define REG_GENMASK(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define REG_GENMASK64(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define __GENMASK(h, l) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define FIELD_PREP(m, x) (((unsigned long long)(x) * ((m) & -(m))) & (m))
#define REG_FIELD_PREP(m, x) (((unsigned long long)(x) * ((m) & -(m))) & (m))
#define FIELD_PREP_CONST(m, x) (((unsigned long long)(x) * ((m) & -(m))) & (m))
#define FIELD_GET(m, x) (((x) & (m)) / ((m) & -(m)))
#define INT8_C(x) (x)
#define INT16_C(x) (x)
#define INT32_C(x) (x)
#define INT64_C(x) (x)
#define UINT8_C(x) (x)
#define UINT16_C(x) (x)
#define UINT32_C(x) (x)
#define UINT64_C(x) (x)
#define _AC(x) (x)
#define _UL(x) (x)
#define _ULL(x) (x)
#define UL(x) (x)
#define ULL(x) (x)
#define __UL(x) (x)
#define cpu_to_le32(x) (x)
#define le32_to_cpu(x) (x)
#define _AC(x, y) (x)
#define __AC(x, y) (x)
#define _U_(x) (x)
#define _UL_(x) (x)
#define _MMIO(x) (x)
#define REG32(x) (x)
#define REG16(x) (x)
#define REG8(x) (x)
#define BITS(l, h) ((~0ull >> (63 - (h))) & (~0ull << (l)))
#define _u(x) x##u
#define _UINT32_(x) (x)
