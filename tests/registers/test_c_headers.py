"""Headers as people have them: a small file for each convention and each defect, and the public
ones counted another way.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from c_counts import Bits, fields
from round_trip import cells, rows_in

from npulab.registers.formats import RegisterTable, read_map, write_map
from npulab.registers.formats.c_numbers import constants, plain_values, probes
from npulab.registers.formats.c_reading import read_c
from npulab.registers.formats.c_text import read_source, read_unit


def read(folder: Path, text: str, **given: Any) -> RegisterTable:
    path = folder / "map.h"
    path.write_text(text, encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return read_c(path, **given)


def rows(table: RegisterTable) -> list[tuple[Any, ...]]:
    named = [{"register": "", "field": "", **row} for row in table.rows]
    return cells(named, "offset register field lsb width")


def places_in(text: str) -> list[tuple[Any, ...]]:
    """The rows that a text states, a line each: offset, register, field, lsb and width, a dash for
    no name.
    """
    out = []
    for line in text.split("\n")[1:-1]:
        offset, register, field, lsb, width = line.replace("-", "").split(" ")
        out.append((int(offset, 16), register, field, int(lsb), int(width)))
    return out


def lost(table: RegisterTable) -> list[str]:
    """Kind, name and line of what is lost."""
    assert table.reading is not None
    out = []
    for kind, name, where, _ in table.reading.lost:
        out.append(f"{kind} {name}, {where.rpartition(', ')[2]}")
    return out


CONVENTIONS = {
    # one name that ends in ADDR changes nothing of the others
    "suffix": (
        "#define U_CON 0x100C\n#define U_CON_MODE_MASK 0xf\n#define U_DATA_ADDR 0x1070\n",
        """
0x100c U_CON MODE 0 4
0x1070 U_DATA_ADDR U_DATA_ADDR 0 32
""",
    ),
    "all with a suffix": (
        "#define U_CON_REG 0x10\n#define U_CON_MODE_MASK 0xf\n#define U_SIZE_REG 0x14\n#define U_SIZE_W_MASK 0xff0\n",
        """
0x10 U_CON MODE 0 4
0x14 U_SIZE W 4 8
""",
    ),
    # fields lie at the register with the longest name
    "longest": (
        "#define U_SRC_ADDR 0x4000\n#define U_SRC_STRIDE 0x4004\n#define U_SRC_STRIDE_STRIDE__MASK 0xfffff\n"
        "#define U_SRC_STRIDE_STRIDE__SHIFT 0\n#define U_SRC_STRIDE_KIND__MASK 0x1fe00000\n#define U_SRC_STRIDE_KIND__SHIFT 21\n",
        """
0x4000 U_SRC_ADDR U_SRC_ADDR 0 32
0x4004 U_SRC_STRIDE STRIDE 0 20
0x4004 U_SRC_STRIDE KIND 21 8
""",
    ),
    "group": (
        "#define G_HI 0x0\n#define G_HI_CLOCK 0x0\n#define G_HI_CLOCK_SCALE__MASK 0x1fc\n#define G_HI_CLOCK_SCALE__SHIFT 2\n"
        "#define G_HI_IDLE 0x4\n#define G_HI_IDLE_FE 0x1\n#define G_HI_IDLE_DE 0x2\n#define G_HI_MODEL 0x20\n",
        """
0x0 G_HI_CLOCK SCALE 2 7
0x4 G_HI_IDLE FE 0 1
0x4 G_HI_IDLE DE 1 1
0x20 G_HI_MODEL G_HI_MODEL 0 32
""",
    ),
    "array": (
        "#define A_ELEM(i0) (0x600 + 0x4*(i0))\n#define A_ELEM__ESIZE 4\n#define A_ELEM__LEN 2\n#define A_ELEM_TYPE__MASK 0xf0\n"
        "#define A_ELEM_TYPE__SHIFT 4\n",
        """
0x600 A_ELEM[0] TYPE 4 4
0x604 A_ELEM[1] TYPE 4 4
""",
    ),
    # registers whose own names end as masks and shifts do
    "own tails": (
        "#define REG_P_INT_MASK 0x20\n#define P_INT_MASK_DMA__MASK 0x1fff\n#define P_INT_MASK_DMA__SHIFT 0\n#define REG_P_WIDTH 0x30\n"
        "#define P_WIDTH_W__MASK 0x7f\n#define P_WIDTH_W__SHIFT 0\n#define REG_P_CVT_SHIFT 0x88\n#define P_CVT_SHIFT_T__MASK 0x80000000\n"
        "#define P_CVT_SHIFT_T__SHIFT 31\n",
        """
0x20 P_INT_MASK DMA 0 13
0x30 P_WIDTH W 0 7
0x88 P_CVT_SHIFT T 31 1
""",
    ),
    "mask among BIT": (
        "#define N_STAT 0x4u\n#define N_STAT_A_MASK BIT_MASK(0)\n#define N_STAT_B_MASK GENMASK(7, 1)\n#define N_INT_MASK 0x30u\n"
        "#define N_LAST 0x40u\n#define N_LAST_C_MASK BIT(9)\n",
        """
0x4 N_STAT A 0 1
0x4 N_STAT B 1 7
0x30 N_INT_MASK N_INT_MASK 0 32
0x40 N_LAST C 9 1
""",
    ),
    "prefix": (
        "#define mmU_STATUS 0xD0000\n#define mmU_BASE_HIGH 0xD0008\n#define U_STATUS_A_SHIFT 4\n#define U_STATUS_A_MASK 0x10\n",
        """
0xd0000 U_STATUS A 4 1
0xd0008 U_BASE_HIGH U_BASE_HIGH 0 32
""",
    ),
    "offsets alone": (
        "#define PC_ENABLE 0x0008 // on\n#define CNA_CON1 0x100C\n#define CNA_CON2 0x1010\n",
        """
0x8 PC_ENABLE PC_ENABLE 0 32
0x100c CNA_CON1 CNA_CON1 0 32
0x1010 CNA_CON2 CNA_CON2 0 32
""",
    ),
    "enumerators": (
        "enum regs { U_BASE = 0x1000, U_A = U_BASE + 0x4, U_B = U_BASE + 0x8, U_C = 0x100c };",
        """
0x1004 U_A U_A 0 32
0x1008 U_B U_B 0 32
0x100c U_C U_C 0 32
""",
    ),
    "attributes": (
        "#define D_BANK (_MK_ADDR_CONST(0x50bc))\n#define D_BANK_RESET_MASK (_MK_MASK_CONST(0xf000f))\n"
        "#define D_BANK_DATA_SHIFT (_MK_SHIFT_CONST(0))\n#define D_BANK_DATA_FIELD (_MK_FIELD_CONST(0xf, D_BANK_DATA_SHIFT))\n"
        "#define D_BANK_DATA_RANGE (3:0)\n#define D_BANK_DATA_DEFAULT_MASK (_MK_MASK_CONST(0xf))\n",
        """
0x50bc D_BANK DATA 0 4
""",
    ),
    "64 bits": (
        "#define M_CFG_LO 0x30\n#define M_CFG_HI 0x34\n#define M_CFG_A BIT(22)\n#define M_CFG_B BIT(33)\n",
        """
0x30 M_CFG_LO A 22 1
0x34 M_CFG_HI B 1 1
""",
    ),
    # further registers whose names go on from another one's, later in the list
    "later": (
        "#define T_COLOR 0x80\n#define T_SIZE 0x88\n#define T_SIZE_W__MASK 0xff\n#define T_SIZE_W__SHIFT 0\n#define T_COLOR_R 0x8c\n"
        "#define T_COLOR_G 0x90\n",
        """
0x80 T_COLOR T_COLOR 0 32
0x88 T_SIZE W 0 8
0x8c T_COLOR_R T_COLOR_R 0 32
0x90 T_COLOR_G T_COLOR_G 0 32
""",
    ),
    "indented": (
        "#define J_STAT 0x2c\n#define   J_IRQ_DONE BIT(3)\n#define J_CMD 0x30\n#define J_CMD_GO BIT(0)\n",
        """
0x2c J_STAT J_IRQ_DONE 3 1
0x30 J_CMD GO 0 1
""",
    ),
    # a group around a striped group, and a bit whose name begins that of a field
    "groups and bits": (
        "#define V_TE 0x0\n#define V_TE_SAMPLER(i) (0x0 + 0x4*(i))\n#define V_TE_SAMPLER__ESIZE 4\n#define V_TE_SAMPLER__LEN 2\n"
        "#define V_TE_SAMPLER_SIZE(i) (0x40 + 0x4*(i))\n#define V_TE_SAMPLER_SIZE_W__MASK 0xff\n#define V_TE_SAMPLER_SIZE_W__SHIFT 0\n"
        "#define V_TS_CONFIG 0x54\n#define V_TS_CONFIG_CLEAR 0x1\n#define V_TS_CONFIG_DEPTH 0x40\n#define V_TS_CONFIG_COLOR 0x80\n"
        "#define V_TS_CONFIG_COLOR_FORMAT__MASK 0xf00\n#define V_TS_CONFIG_COLOR_FORMAT__SHIFT 8\n#define V_TS_CONFIG_LAST 0x2000\n",
        """
0x40 V_TE_SAMPLER_SIZE[0] W 0 8
0x44 V_TE_SAMPLER_SIZE[1] W 0 8
0x54 V_TS_CONFIG CLEAR 0 1
0x54 V_TS_CONFIG DEPTH 6 1
0x54 V_TS_CONFIG COLOR 7 1
0x54 V_TS_CONFIG COLOR_FORMAT 8 4
0x54 V_TS_CONFIG LAST 13 1
""",
    ),
    "bit 31 is an int's sign": (
        "#define S_REG 0x4\n#define S_BUSY (1 << 31)\n#define L_REG 0x8\n#define L_W_MASK (0xffff << 0)\n"
        "#define L_H_MASK (0xffff << 16)\n",
        """
0x4 S BUSY 31 1
0x8 L W 0 16
0x8 L H 16 16
""",
    ),
    # a register that others count from, and one whose name ends in ADDR
    "array that others count from": (
        "#define C_CTRL(n) (0x100 + 0x20 * (n))\n#define C_CTRL__SIZE_1 1\n#define C_CTRL_EN BIT(0)\n"
        "#define C_ADDR(n) (0x104 + 0x20 * (n))\n#define C_ADDR__SIZE_1 1\n#define C_LEN(n) (C_CTRL(n) + 8)\n"
        "#define C_LEN__SIZE_1 1\n",
        """
0x100 C_CTRL[0] EN 0 1
0x104 C_ADDR[0] C_ADDR[0] 0 32
0x108 C_LEN[0] C_LEN[0] 0 32
""",
    ),
    "bits as high:low": (
        "#define N_CTRL 0x100 /* RW-4R */\n#define N_CTRL_ON 0:0\n#define N_CTRL_ON_YES 1\n#define N_CTRL_MODE 6:4\n"
        "#define N_CH(i) (0x200+(i)*16)\n#define N_CH__SIZE_1 2\n#define N_CH_LEN 15:0\n",
        """
0x100 N_CTRL ON 0 1
0x100 N_CTRL MODE 4 3
0x200 N_CH[0] LEN 0 16
0x210 N_CH[1] LEN 0 16
""",
    ),
    "a field named RESET": (
        "#define X_CR_OFFSET 0x0\n#define X_CR_RESET_MASK 0x4\n#define X_CR_MODE_MSK 0x70\n#define X_CR_MODE_POS 4\n"
        "#define X_SR_OFFSET 0x4\n#define X_SR_IDLE_MASK 0x2\n",
        """
0x0 X_CR RESET 2 1
0x0 X_CR MODE 4 3
0x4 X_SR IDLE 1 1
""",
    ),
    "fields with an offset": (
        "#define U_CTRL 0x10\n#define U_CTRL_EN 0x10\n#define U_CTRL_EN_OFFSET 0\n#define U_CTRL_EN_MASK 0x1\n"
        "#define U_CTRL_MODE 0x10\n#define U_CTRL_MODE_OFFSET 4\n#define U_CTRL_MODE_MASK 0x70\n",
        """
0x10 U_CTRL EN 0 1
0x10 U_CTRL MODE 4 3
""",
    ),
    # offsets that count words, a shift and a mask of different tails
    "AMD": (
        "#define mmU_CNTL 0x100\n#define mmU_CNTL_BASE_IDX 0\n#define mmU_STAT 0x101\n#define U_CNTL__MODE__SHIFT 0x4\n"
        "#define U_CNTL__MODE_MASK 0x00000070L\n#define U_STAT__BUSY__SHIFT 0x1f\n#define U_STAT__BUSY_MASK 0x80000000L\n",
        """
0x400 U_CNTL MODE 4 3
0x404 U_STAT BUSY 31 1
""",
    ),
    "names at two underscores": (
        "#define U_C__CTRL__OFFSET (0x10L)\n#define U_C__CTRL__WIDTH (32)\n#define U_C__CTRL__MODE__SHIFT (4)\n"
        "#define U_C__CTRL__MODE__WIDTH (3)\n#define U_C__CTRL__MODE__MASK (0x70L)\n#define U_C__CTRL__MODE__RESET (0x0L)\n",
        """
0x10 U_C__CTRL MODE 4 3
""",
    ),
    "a mark inside": (
        "#define U_O_CTL 0x0U\n#define U_O_STAT 0x4U\n#define U_CTL_MODE_W 3U\n#define U_CTL_MODE_M 0x70U\n#define U_CTL_MODE_S 4U\n"
        "#define U_CTL_MODE_FAST 0x10U\n#define U_STAT_BUSY_M 0x1U\n#define U_STAT_BUSY_S 0U\n",
        """
0x0 U_CTL MODE 4 3
0x4 U_STAT BUSY 0 1
""",
    ),
    # in no name is another one, so that their order says it
    "in order": (
        "#define U_BASE 0x60034000\n#define U_CTRL_REG (U_BASE + 0x0)\n#define U_START (BIT(0))\n#define U_START_M (U_START_V << U_START_S)\n"
        "#define U_START_V 0x1U\n#define U_START_S 0\n#define U_STATUS_REG (U_BASE + 0x4)\n#define U_CODE_M (U_CODE_V << U_CODE_S)\n"
        "#define U_CODE_V 0xffU\n#define U_CODE_S 8\n",
        """
0x60034000 U_CTRL_REG U_START 0 1
0x60034004 U_STATUS_REG U_CODE 8 8
""",
    ),
    "a setter below its register": (
        "#define S_ID 0x0\n#define S_CFG 0x4\n#define S_CFG_ON BIT(0)\n#define S_TAB 0x8\n"
        "#define     S_DC(x) (((x) & 0x3fff) << 14)\n#define   S_MAJOR(x) ((x) >> 28)\n",
        """
0x0 S_ID S_ID 0 32
0x4 S_CFG ON 0 1
0x8 S_TAB S_DC 14 14
0x8 S_TAB S_MAJOR 28 4
""",
    ),
    # members of a struct are the registers of the masks that their names begin
    "struct and masks": (
        "typedef struct { volatile uint32_t CR; uint32_t DR; uint32_t R1[2]; volatile uint32_t SR; } U_TypeDef;\n"
        "#define U_CR_MODE_Pos (4U)\n#define U_CR_MODE_Msk (0x7UL << U_CR_MODE_Pos)\n#define U_CR_MODE U_CR_MODE_Msk\n"
        "#define U_SR_BUSY (1 << 31)\n",
        """
0x0 CR MODE 4 3
0x4 - DR 0 32
0x8 - R1[0] 0 32
0xc - R1[1] 0 32
0x10 SR BUSY 31 1
""",
    ),
    "enumerated bits": (
        "enum reg { U_REG_ID = 0x0, U_REG_CTRL = 0x4, U_REG_LEN = 0x8 };\nenum { U_CTRL_ON = BIT(0), U_CTRL_MODE = GENMASK(6, 4) };\n",
        """
0x0 U_REG_ID U_REG_ID 0 32
0x4 U_CTRL ON 0 1
0x4 U_CTRL MODE 4 3
0x8 U_REG_LEN U_REG_LEN 0 32
""",
    ),
    "i.MX": (
        "#define HW_U_CTRL 0x0\n#define BM_U_CTRL_RST 0x80000000\n#define BP_U_CTRL_MODE 4\n#define BM_U_CTRL_MODE 0x70\n"
        "#define BF_U_CTRL_MODE(v) (((v) << 4) & BM_U_CTRL_MODE)\n#define HW_U_STAT 0x10\n#define BM_U_STAT_BUSY 0x1\n",
        """
0x0 U_CTRL MODE 4 3
0x0 U_CTRL RST 31 1
0x10 U_STAT BUSY 0 1
""",
    ),
    "a word in front": (
        "#define E_U_CTRL (0x0)\n#define U_CTRL_START (1 << 0)\n#define U_CTRL_MODE_MASK (0x7 << 4)\n#define E_U_SIZE (0x8)\n"
        "#define U_SIZE_W(x) (((x) >> 16) & 0xffff)\n",
        """
0x0 U_CTRL START 0 1
0x0 U_CTRL MODE 4 3
0x8 U_SIZE W 16 16
""",
    ),
    "the number of a bit": (
        "#define U_STATE_REG_OFFSET 0x0\n#define U_STATE_DONE_BIT 0\n#define U_CTRL_REG_OFFSET 0x4\n#define U_CTRL_REG_RESVAL 0x0u\n"
        "#define U_CTRL_EN_BIT 3\n#define U_CTRL_MODE_MASK 0x7\n#define U_CTRL_MODE_OFFSET 4\n",
        """
0x0 U_STATE DONE 0 1
0x4 U_CTRL EN 3 1
0x4 U_CTRL MODE 4 3
""",
    ),
    "Microchip": (
        "#define U_CTRLA_OFFSET (0x00)\n#define U_CTRLA_RESETVALUE _U_(0x00)\n#define U_CTRLA_RST_Pos 0\n#define U_CTRLA_RST (_U_(0x1) << U_CTRLA_RST_Pos)\n"
        "#define U_CTRLA_MODE_Pos 2\n#define U_CTRLA_MODE_Msk (_U_(0x7) << U_CTRLA_MODE_Pos)\n#define U_CTRLA_MODE_FAST_Val _U_(0x1)\n"
        "#define U_CTRLA_MODE_FAST (U_CTRLA_MODE_FAST_Val << U_CTRLA_MODE_Pos)\n",
        """
0x0 U_CTRLA RST 0 1
0x0 U_CTRLA MODE 2 3
""",
    ),
    "Nordic": (
        "typedef struct { uint32_t START; uint32_t SHORTS; } NRF_U_Type;\n#define U_SHORTS_A_Pos (4UL)\n#define U_SHORTS_A_Msk (0x1UL << U_SHORTS_A_Pos)\n",
        """
0x0 - START 0 32
0x4 SHORTS A 4 1
""",
    ),
    "bits by a macro": (
        "#include <stdint.h>\n#define FIELD(field, bits) uint32_t field : bits;\nstruct p {\n FIELD(kind, 1)\n FIELD(size, 31)\n};\n",
        """
0x0 - kind 0 1
0x0 - size 1 31
""",
    ),
    "struct by a macro": (
        "#define STRUCT struct\nstruct id { uint32_t a : 4, b : 28; };\nstruct npu { STRUCT id ID; };\n",
        """
0x0 - ID.a 0 4
0x0 - ID.b 4 28
""",
    ),
    "words of kernels": (
        "struct r { uint32_t a : 8, b : 24; void __iomem *base; uint32_t args[] __counted_by(a); } __packed;\n"
        "enum e { A, MOST = INT_MAX };\nstruct t { enum other x; uint8_t room[SZ_4]; };\n",
        """
0x0 - a 0 8
0x0 - b 8 24
0x4 - base 0 32
0x8 - base 0 32
0x0 - x 0 32
0x4 - room[0] 0 8
0x4 - room[1] 8 8
0x4 - room[2] 16 8
0x4 - room[3] 24 8
""",
    ),
    # a low bit and the count of bits behind it, beside registers with their sizes
    "LiteX": (
        "#define CSR_BASE 0xf0000000L\n#define CSR_U_MODE_ADDR (CSR_BASE + 0x800L)\n#define CSR_U_MODE_SIZE 1\n#define CSR_U_MODE_KIND_OFFSET 4\n"
        "#define CSR_U_MODE_KIND_SIZE 3\n#define CSR_U_STAT_ADDR (CSR_BASE + 0x804L)\n#define CSR_U_STAT_SIZE 1\n#define CSR_U_STAT_IDLE_OFFSET 0\n"
        "#define CSR_U_STAT_IDLE_SIZE 1\n",
        """
0xf0000800 CSR_U_MODE KIND 4 3
0xf0000804 CSR_U_STAT IDLE 0 1
""",
    ),
    "a place and a length": (
        "#define U_CTRL 0x10\n#define U_CTRL_EN_POS 0\n#define U_CTRL_EN_LEN 1\n#define U_CTRL_MODE_POS 4\n#define U_CTRL_MODE_LEN 3\n",
        """
0x10 U_CTRL EN 0 1
0x10 U_CTRL MODE 4 3
""",
    ),
    # where registers are marked, what goes on from one and is not is its bits
    "Xilinx": (
        "#define XU_CR_OFFSET 0x0U\n#define XU_MR_OFFSET 0x4U\n#define XU_ISR_OFFSET 0x14U\n#define XU_CR_STOP 0x100U\n#define XU_CR_START 0x80U\n"
        "#define XU_MR_KIND_SHIFT 8U\n#define XU_MR_KIND_MASK 0x300U\n#define XU_ISR_DONE 0x1U\n#define XU_ISR_ERR 0x2U\n#define XU_ISR_MASK 0x3U\n",
        """
0x0 XU_CR START 7 1
0x0 XU_CR STOP 8 1
0x4 XU_MR KIND 8 2
0x14 XU_ISR DONE 0 1
0x14 XU_ISR ERR 1 1
""",
    ),
    "TivaWare": (
        "#define U_O_DR 0x00000000 // Data\n#define U_O_CTL 0x00000004\n#define U_O_STAT 0x00000018\n#define U_DR_OE 0x00000800\n"
        "#define U_CTL_MODE_M 0x00000030\n#define U_CTL_MODE_FAST 0x00000010\n#define U_STAT_BUSY 0x00000008\n",
        """
0x0 U_DR OE 11 1
0x4 U_CTL MODE 4 2
0x18 U_STAT BUSY 3 1
""",
    ),
    "marked in the middle": (
        "#define U_OFFSET_VERSION 0x0\n#define U_OFFSET_VERSION_NUM 0x4\n#define U_OFFSET_EN 0x8\n",
        """
0x0 U_OFFSET_VERSION U_OFFSET_VERSION 0 32
0x4 U_OFFSET_VERSION_NUM U_OFFSET_VERSION_NUM 0 32
0x8 U_OFFSET_EN U_OFFSET_EN 0 32
""",
    ),
    "RP2040": (
        "#define U_CTRL_OFFSET _u(0x10)\n#define U_CTRL_BITS _u(0xf07)\n#define U_CTRL_RESET _u(0x0)\n#define U_CTRL_MODE_RESET _u(0x0)\n"
        "#define U_CTRL_MODE_BITS _u(0xf00)\n#define U_CTRL_MODE_MSB _u(11)\n#define U_CTRL_MODE_LSB _u(8)\n#define U_CTRL_EN_BITS _u(0x7)\n"
        "#define U_CTRL_EN_MSB _u(2)\n#define U_CTRL_EN_LSB _u(0)\n",
        """
0x10 U_CTRL EN 0 3
0x10 U_CTRL MODE 8 4
""",
    ),
    "Intel's LSB and MSB": (
        "#define A_CTRL_EN_LSB 0\n#define A_CTRL_EN_MSB 0\n#define A_CTRL_EN_WIDTH 1\n#define A_CTRL_EN_SET_MSK 0x1\n#define A_CTRL_EN_CLR_MSK 0xfffffffe\n"
        "#define A_CTRL_EN_RESET 0x0\n#define A_CTRL_EN_GET(value) (((value) & 0x1) >> 0)\n#define A_CTRL_RESET 0x0\n#define A_CTRL_OFST 0x10\n",
        """
0x10 A_CTRL EN 0 1
""",
    ),
    "pointers": (
        "#define U_BASE 0x43c00000\n#define U_CTRL (*(volatile uint32_t *)(U_BASE + 0x10))\n#define U_LEN *((volatile unsigned long *)(0x43c00018))\n"
        "#define U_CTRL_EN (1 << 0)\n",
        """
0x43c00010 U_CTRL EN 0 1
0x43c00018 U_LEN U_LEN 0 32
""",
    ),
    "an offset in a struct": (
        "#define _MMIO(r) ((const i915_reg_t){ .reg = (r) })\n#define U_CTL _MMIO(0x2030)\n#define U_CTL_ON REG_BIT(31)\n#define U_STAT _MMIO(0x2034)\n"
        "#define U_STAT_BUSY REG_BIT(0)\n",
        """
0x2030 U_CTL ON 31 1
0x2034 U_STAT BUSY 0 1
""",
    ),
    "constants": (
        "static const uint32_t U_CTRL = 0x10;\nstatic const uint32_t U_STAT = 0x14;\nconstexpr uint32_t U_CTRL_MODE_MASK = 0x70;\nconstexpr uint32_t U_CTRL_MODE_SHIFT = 4;\n",
        """
0x10 U_CTRL MODE 4 3
0x14 U_STAT U_STAT 0 32
""",
    ),
    "enumerated masks": (
        "enum { U_CTRL = 0x10, U_STAT = 0x14, U_LEN = 0x18, U_LAST };\nenum bits { U_CTRL_EN = 1 << 0, U_CTRL_MODE_SHIFT = 4, U_CTRL_MODE_MASK = 0x7 << 4 };\n",
        """
0x10 U_CTRL EN 0 1
0x10 U_CTRL MODE 4 3
0x14 U_STAT U_STAT 0 32
0x18 U_LEN U_LEN 0 32
""",
    ),
    "values less one": (
        "#define U_SIZE 0x4\n#define U_SIZE_W(x) FIELD_PREP(GENMASK(15, 0), (x) - 1)\n#define U_SIZE_H_GET(x) FIELD_GET(GENMASK(31, 16), (x))\n",
        """
0x4 U_SIZE W 0 16
0x4 U_SIZE H_GET 16 16
""",
    ),
    "regmap": (
        "#define U_CTRL 0x10\n#define U_STAT 0x14\nstatic const struct reg_field all[] = { [F_MODE] = REG_FIELD(U_CTRL, 4, 6), [F_BUSY] = REG_FIELD(U_STAT, 31, 31) };\n",
        """
0x10 U_CTRL F_MODE 4 3
0x14 U_STAT F_BUSY 31 1
""",
    ),
    "fields whose names go on from each other": (
        "#define U_CTL 0x10\n#define U_CTL_LEN GENMASK(7, 4)\n#define U_CTL_LEN_ERR GENMASK(31, 30)\n#define U_CTL_LEN_MAX BIT(3)\n",
        """
0x10 U_CTL LEN 4 4
0x10 U_CTL LEN_ERR 30 2
""",
    ),
    "values whose names end as numbers of bits do": (
        "#define U_CTL 0x10\n#define U_CTL_SYNC_LSB (0 << 4)\n#define U_CTL_SYNC_MSB (1 << 4)\n#define U_CTL_SYNC_SHIFT 4\n"
        "#define U_CTL_SYNC_MASK (1 << 4)\n",
        """
0x10 U_CTL SYNC 4 1
""",
    ),
    "underscores in front": (
        "typedef struct { uint32_t EN; uint32_t CTRL; } U_TypeDef;\n#define _U_EN_EN_SHIFT 0\n#define _U_EN_EN_MASK 0x1UL\n#define U_EN_EN (0x1UL << 0)\n"
        "#define _U_CTRL_MODE_SHIFT 4\n#define _U_CTRL_MODE_MASK 0x70UL\n",
        """
0x0 EN EN 0 1
0x4 CTRL MODE 4 3
""",
    ),
    "offsets that count words": (
        "#define REG_U_CTL 0x1c3\n#define U_CTL_LEN__MASK 0xfff00000\n#define U_CTL_LEN__SHIFT 20\n#define REG_U_STAT 0x1c4\n",
        """
0x70c U_CTL LEN 20 12
0x710 U_STAT U_STAT 0 32
""",
    ),
    "a value whose name ends as a low bit's": (
        "#define U_CH_OFST 0x200\n#define U_CH_STA_MASK GENMASK(1, 0)\n#define U_CH_STA_IDLE (0x0)\n#define U_CH_STA_START (0x1)\n",
        """
0x200 U_CH STA 0 2
""",
    ),
    # i915's: an index chooses from offsets, whatever the macro around them is
    "offsets of two pipes": (
        "#define _MMIO_PIPE(p, a, b) ((const reg_t){ .reg = (a) + (p) * ((b) - (a)) })\n#define _PIPEACONF 0x70008\n#define   PIPECONF_ENABLE (1 << 31)\n"
        "#define _PIPEBCONF 0x71008\n#define PIPECONF(pipe) _MMIO_PIPE(pipe, _PIPEACONF, _PIPEBCONF)\n#define _DPLL_A 0x6014\n#define _DPLL_B 0x6018\n"
        "#define DPLL(pipe) _PICK((pipe), _DPLL_A, _DPLL_B)\n#define   DPLL_ON REG_BIT(4)\n",
        """
0x6014 DPLL[0] ON 4 1
0x6018 DPLL[1] ON 4 1
0x70008 PIPECONF[0] ENABLE 31 1
0x71008 PIPECONF[1] ENABLE 31 1
""",
    ),
    "offsets of three literals": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define U_SIZE(pipe) _PIPE(pipe, 0x180, 0x280, 0x380)\n",
        """
0x10 U_CTL A 0 1
0x180 U_SIZE[0] U_SIZE[0] 0 32
0x280 U_SIZE[1] U_SIZE[1] 0 32
0x380 U_SIZE[2] U_SIZE[2] 0 32
""",
    ),
    "registers through a pointer macro": (
        "#define REG32(addr) (*(volatile uint32_t *)(uint32_t)(addr))\n#define NPU NPU_BASE\n#define NPU_BASE 0x50000000U\n#define NPU_CTL REG32((NPU) + 0x08U)\n#define NPU_CTL_EN BIT(3)\n",
        """
0x50000008 NPU_CTL EN 3 1
""",
    ),
    "a field of regmap by itself": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\nstatic const struct reg_field f_len = REG_FIELD(U_CTL, 4, 11);\n",
        """
0x10 U_CTL A 0 1
0x10 U_CTL f_len 4 8
""",
    ),
    "an argument that says nothing": (
        "#define U_BASE 0x60034000\n#define U_CONF_REG(i) (U_BASE + 0x0)\n#define U_CONF_ON_MASK 0x1\n#define U_CONF_ON_SHIFT 0\n#define U_LEN_REG(i) (U_BASE + 0x4)\n",
        """
0x60034000 U_CONF ON 0 1
0x60034004 U_LEN_REG U_LEN_REG 0 32
""",
    ),
}


@pytest.mark.parametrize("name", CONVENTIONS)
def test_each_convention(name: str, tmp_path: Path) -> None:
    text, want = CONVENTIONS[name]
    table = read(tmp_path, text)
    assert rows(table) == places_in(want)
    assert lost(table) == []
    table.check()


LOSSES = {
    "callback": (
        "struct k { uint32_t en : 1, mode : 31; };\nstruct ctx { irq_callback_t cb; };\n",
        ["declaration struct ctx, line 2"],
        2,
    ),
    "array": (
        "struct a { uint32_t en : 32; };\nstruct big {\n uint16_t v[131072]; };\n",
        ["declaration struct big, line 3"],
        1,
    ),
    "mask of another header": (
        "#define V_CFG 0x0\n#define V_CFG_LEN_MASK V_MASK(3, 0)\n#define V_CFG_LEN_SHIFT 0\n#define V_ADDR 0x4\n",
        ["field V_CFG_LEN_MASK, line 2"],
        2,
    ),
    "field without register": (
        "#define A_REG 0x8\n#define A_REG_X_MASK BIT(1)\n#define ELSE_X_SHIFT 4\n#define ELSE_X_MASK 0x10\n",
        ["field ELSE_X, line 3"],
        1,
    ),
    "a second register": (
        "#define R_READ 0x8\n#define R_READ_A_MASK BIT(1)\n#define R_CLEAR 0x8\n#define R_CLEAR_B_MASK BIT(2)\n",
        ["second register R_CLEAR, line 3"],
        2,
    ),
    "no length": (
        "#define T_CFG 0x8\n#define T_CFG_A_MASK BIT(1)\n#define T_TABLE(i) (0x40 + 4 * (i))\n",
        ["array T_TABLE, line 3"],
        2,
    ),
    "a second field": (
        "#define W_3 0xc\n#define W_3_REG__MASK 0xff\n#define W_3_REG__SHIFT 0\n#define W_3_IMM__MASK 0xfff\n#define W_3_IMM__SHIFT 0\n",
        ["second field W_3_IMM, line 4"],
        2,
    ),
    "fields that a macro makes a table of": (
        "#define T_REG(b, s, m) ((const struct reg){ .base = b, .shift = s, .mask = m })\n#define T_ID 0x0\n"
        "#define T_ID_A BIT(0)\n#define t_swap T_REG(2, 28, 0xf)\n",
        ["macro t_swap, line 4"],
        1,
    ),
    "bits of no register": (
        "#define U_CFG 0x90\n#define U_CFG_A BIT(2)\n#define LOCK (1 << 31)\n",
        ["field LOCK, line 3"],
        1,
    ),
    "one bit of several": (
        "#define U_CFG 0x90\n#define U_CFG_A BIT(9)\n#define U_CFG_LINE(i) BIT(i)\n",
        ["field U_CFG_LINE, line 3"],
        1,
    ),
    "an array far away": (
        "#define U_CFG 0x8\n#define U_CFG_A BIT(1)\n#define BELL(i) (0x80000 + 0x10000 * (i))\n",
        ["macro BELL, line 3"],
        1,
    ),
    # every number that nothing places
    "fields packed into one number": (
        "#define FLD(msb, lsb) (((msb) - (lsb) + 1) << 16 | (lsb))\n#define U_CTL 0x10\n#define U_LEN 0x14\n#define U_CTL_FLD_EN FLD(6, 4)\n",
        ["number U_CTL_FLD_EN, line 4"],
        2,
    ),
    "a number beside the fields": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define U_CTL_HEIGHT 13\n",
        ["number U_CTL_HEIGHT, line 3"],
        1,
    ),
    "a table of names and offsets": (
        '#define U_CTL 0x10\n#define U_CTL_A BIT(0)\nstatic const struct reg all[] = { {"a", 0x100}, {"b", 0x104}, {"c", 0x108} };\n',
        ["table all, line 3"],
        1,
    ),
    "offsets at no one distance": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define U_SIZE(pipe) _PIPE(pipe, 0x180, 0x280, 0x300)\n",
        ["number U_SIZE, line 3"],
        1,
    ),
    "offsets of names at no one distance": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define _A 0x40\n#define _B 0x20\n#define U_SIZE(pipe) _PIPE(pipe, _A, _B)\n",
        ["number U_SIZE, line 5"],
        1,
    ),
    "the offset of the first pipe": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define _A 0x40\n#define U_SIZE(pipe) _PIPE2(pipe, _A)\n",
        ["array U_SIZE, line 4"],
        2,
    ),
    "offsets that functions make": (
        "static inline uint32_t REG_U_BUF(uint32_t i0) { return 0x00000100 + 0x10*i0; }\n#define U_BUF_LOW_MASK 0xf\n#define U_BUF_LOW_SHIFT 0\n",
        ["array U_BUF, line 1"],
        1,
    ),
    "bits that a sum has": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define GO BIT(1)\n#define ALL (GO | 0x20)\nstruct s { uint32_t a; };\n",
        ["field GO, line 3", "number ALL, line 4"],
        2,
    ),
    "a number that a sum has": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define GO 0x2\n#define ALL (GO | HALT)\n",
        ["number GO, line 3"],
        1,
    ),
    "a number that code has": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define GO 13\n#define GO_ON() do { *at = GO; } while (0)\n",
        ["number GO, line 3"],
        1,
    ),
    "bits around those of a mask": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define L_MASK 0x7\n#define L_GO BIT(0)\n#define L_ON BIT(9)\n",
        ["field L, line 3", "field L_GO, line 4", "field L_ON, line 5"],
        1,
    ),
    "a sum of bits is no register": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define L_ERR_X (1 << 9)\n#define L_ERR_Y (1 << 10)\n#define L_ERR (L_ERR_X | L_ERR_Y)\n",
        ["field L_ERR_X, line 3", "field L_ERR_Y, line 4", "number L_ERR, line 5"],
        1,
    ),
    "a mask of the field's own name": (
        "#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define L_MUTE 0x100\n#define L_MUTE_MASK 0x100\n#define L_MUTE_SHIFT 8\n",
        ["field L_MUTE, line 4"],
        1,
    ),
    "a base is no register": (
        "#define T_U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define U_CTL_B BIT(1)\n#define BASE_U_DL 0x100\n#define T_U_INIT (BASE_U_DL + 0x0)\n"
        "#define T_U_ADD (BASE_U_DL + 0x4)\n#define U_DL_IDLE BIT(2)\n",
        ["field U_DL_IDLE, line 7"],
        4,
    ),
    "a member of a program's struct": (
        "struct u_priv { void *dev; uint32_t mode; };\n#define U_CTL 0x10\n#define U_CTL_A BIT(0)\n#define U_MODE_FAST_MASK 0x1\n#define U_MODE_FAST_SHIFT 0\n",
        ["field U_MODE_FAST, line 4"],
        4,
    ),
    "a part of a field": (
        "#define U_CTL 0x10\n#define U_CTL_EX_MASK GENMASK(22, 16)\n#define U_CTL_EX_S_MASK GENMASK(19, 16)\n",
        ["second field U_CTL_EX_S, line 3"],
        2,
    ),
    # what lies at no multiple of a word hides what is around it
    "a register that cannot be placed": (
        "#define U_SHD 0x1c\n#define U_SHD_GO BIT(3)\n#define U_SHD_MODE 0x1f\n#define U_SHD_MODE_ON BIT(0)\n",
        ["number U_SHD_MODE, line 3", "field U_SHD_MODE_ON, line 4"],
        1,
    ),
    "bits behind it": (
        "#define REG_U_CTL 0x20\n#define CTL_GO BIT(2)\n#define U_ON BIT(3)\n#define REG_U_LED 0x23\n#define U_RED BIT(0)\n#define REG_U_TXT 0x24\n#define U_BOLD BIT(5)\n",
        ["field CTL_GO, line 2", "number REG_U_LED, line 4", "field U_RED, line 5"],
        2,
    ),
    "bits behind a struct": (
        "#define U_A_INFO3_GO BIT(3)\nstruct u_a {\n uint32_t info3; };\n#define   U_B_INFO0_ON BIT(4)\n",
        ["field U_B_INFO0_ON, line 4"],
        1,
    ),
    "a member of two structs": (
        "struct u_a { uint32_t id; uint32_t flags; };\nstruct u_b { irq_t irq; uint32_t flags; };\n#define U_FLAGS_ON_MASK 0x8\n#define U_FLAGS_ON_SHIFT 3\n",
        ["field U_FLAGS_ON, line 3", "declaration struct u_b, line 2"],
        2,
    ),
    "bits outside of a lost field": (
        "#define V_CTL 0x10\n#define V_CTL_A BIT(0)\n#define U_FUN_SHIFT 4\n#define U_FUN_MASK 0xf\n#define U_FUN_EN BIT(0)\n",
        ["field U_FUN, line 3", "field U_FUN_EN, line 5"],
        1,
    ),
    "fields go on from a mask by its own name": (
        "#define V_CTL 0x10\n#define V_CTL_A BIT(0)\n"
        + "".join(
            f"#define W_{n} 0x0010\n#define W_{n}_MASK 0x0010\n#define W_{n}_SHIFT 4\n#define W_{n}_DCY_MASK 0x0f00\n#define W_{n}_DCY_SHIFT 8\n"
            for n in "ABC"
        ),
        [
            "field W_A, line 4",
            "field W_A_DCY, line 6",
            "field W_B, line 9",
            "field W_B_DCY, line 11",
            "field W_C, line 14",
            "field W_C_DCY, line 16",
        ],
        1,
    ),
    # a word that stands in front is left out where that names one register
    "the end of two registers' names": (
        "#define A_RST 0x8\n#define B_RST 0xc\n#define RST_GO BIT(1)\n#define C_CTL 0x10\n#define CTL_A BIT(0)\n#define CTL_B BIT(1)\n",
        ["macro A_RST, line 1", "macro B_RST, line 2", "field RST_GO, line 3"],
        2,
    ),
    "the end of a name that units have": (
        "#define ERROR_GEN 0x100\n"
        + "".join(f"#define GEN_R{n} {4 * n:#x}\n" for n in range(6))
        + "#define GEN_ON BIT(1)\n#define GEN_OFF BIT(2)\n",
        ["macro ERROR_GEN, line 1", "field GEN_ON, line 8", "field GEN_OFF, line 9"],
        6,
    ),
    "a member reg": (
        "struct u_map { uint32_t reg; };\n#define U_REG_A_MASK 0x1\n#define U_REG_A_SHIFT 0\n#define U_BY_F_MASK 0x1\n#define U_BY_F_SHIFT 0\n",
        ["field U_BY_F, line 4"],
        1,
    ),
    "declared twice": (
        "struct s { uint32_t a; };\nstruct s { uint32_t b; };\n",
        ["declaration struct s, line 2"],
        1,
    ),
}


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_lost_is_named_and_the_rest_is_read(name: str, tmp_path: Path) -> None:
    text, want, count = LOSSES[name]
    table = read(tmp_path, text)
    assert lost(table) == want
    assert len(table.rows) == count
    assert table.reading is not None
    kinds = [kind for kind, *_ in table.reading.lost]
    assert f"{kinds.count(kinds[0])} {kinds[0]}" in str(table.reading)


def test_members_of_a_union_that_overlap_are_alternatives(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "struct s { uint32_t head; union { struct { uint32_t a : 4, b : 28; } one; struct { uint32_t c : 32; } two; } u; };",
    )
    assert [(row["field"], row.get("feature", "")) for row in table.rows] == [
        ("head", ""),
        ("u.one.a", "u.one"),
        ("u.one.b", "u.one"),
        ("u.two.c", "u.two"),
    ]
    table.check()
    assert table.features == ["u.one", "u.two"]


def test_an_array_is_in_one_block_and_few_at_one_place_divide_nothing(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "".join(f"#define P_{n} {4 * n:#x}\n#define P_{n}_A_MASK 0xf\n" for n in range(60))
        + "#define T(i) (0xf0 + 4 * (i))\n"
        "#define T__ESIZE 4\n#define T__LEN 40\n#define T_B_MASK 0xf0\n#define R(i) (0x180 + 4 * (i))\n#define R__ESIZE 4\n#define R__LEN 4\n",
    )
    assert {row["block"]: row["offset"] for row in table.rows} == {"map": 0x18C, "map_2": 0x18C}
    assert all(text.startswith("second register ") for text in lost(table))
    assert len(lost(table)) == 4


def test_registers_and_masks_in_two_files(tmp_path: Path) -> None:
    (tmp_path / "regs.h").write_text(
        "#define mmU_CFG 0x100\n#define mmU_STS 0x104\n#define mmU_OTHER 0x108\n"
    )
    table = read(
        tmp_path,
        "#define U_CFG_A_SHIFT 4\n#define U_CFG_A_MASK 0xF0\n#define U_STS_B_SHIFT 0\n#define U_STS_B_MASK 0x1\n",
        include=[tmp_path / "regs.h"],
    )
    assert rows(table)[:2] == [(0x100, "U_CFG", "A", 4, 4), (0x104, "U_STS", "B", 0, 1)]
    assert lost(table) == []


def test_constants_and_types_are_given(tmp_path: Path) -> None:
    text = "#define V_CFG 0x0\n#define V_CFG_LEN_MASK V_MASK(3, 0)\nstruct s { fmt_t kind : 3; uint32_t room[COUNT]; };\n"
    table = read(tmp_path, text, define=["V_MASK(h,l)=GENMASK(h, l)", "fmt_t=uint32_t", "COUNT=2"])
    assert lost(table) == []
    assert len(table.rows) == 4


SUMS = [
    "0x100 + 4*(i)",
    "(0x100 + (i) * 4)",
    "(0x100+(0x20 * i))",
    "((8 + 4 * (i)))",
    "BASE + 0x100ul + (i * 4)",
    "BASE + (i)",
    "i + NEXT * i + 2 * 3",
]
OTHERS = [
    "(0x100 + i)*4",
    "(0x100+4)*(i)",
    "(0x100 + (i))*4",
    "0x100 + 4*(n)",
    "(0x100 + 4*(i)",
    "0x100 + 4*(i))",
    "0x7ffffff0 + 8*(i)",
    "010 + 4*(i)",
    "0x100 + 4*i(i)",
    "0x100 - 4*(i)",
    "4 + i*i",
    "4 + (i + 1) * 4",
    "4 + NONE*i",
    "4 + LAST*i",
    "4 + 2 * 2 * i",
]


def test_sums_that_need_no_compiler_are_as_it_has_them(tmp_path: Path) -> None:
    path = tmp_path / "map.h"
    path.write_text(
        "#define BASE 0x1000\n#define NEXT (BASE + 8)\n#define SAME NEXT\n"
        + "".join(f"#define A{n}(i) {body}\n" for n, body in enumerate(SUMS + OTHERS))
        + "#define LAST 4\n"
    )
    source = read_source(path)
    numbers = constants(source.macros)
    known = plain_values(numbers)
    assert {name.partition("[")[0] for name in known} == {
        "BASE",
        "NEXT",
        "SAME",
        "LAST",
        *(f"A{n}" for n in range(len(SUMS))),
    }
    assert not probes(source, numbers, known).keys() & known.keys()
    values = read_unit(source, probes(source, numbers, {})).values
    assert {name: values[name] for name in known} == known
    assert values[f"A{len(SUMS)}[1]"] == 0x404


def test_names_that_a_macro_makes_of_parts(tmp_path: Path) -> None:
    table = read(
        tmp_path,
        "#define U_A_BITS 3\n#define MEMBER(x) unsigned x : U_##x##_BITS;\nstruct s { MEMBER(A) };\n",
    )
    assert rows(table) == [(0, "", "A", 0, 3)]


def test_the_shell_counts_what_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from npulab.cli.shell import main

    (tmp_path / "a.h").write_text(LOSSES["callback"][0])
    assert main(["map", str(tmp_path / "a.h"), str(tmp_path / "a.csv")]) == 0
    out, err = capsys.readouterr()
    assert "1 of 2 lines explained; lost: 1 declaration" in out
    assert "struct ctx (line 2)" in err


@pytest.mark.parametrize("count", [3_000, pytest.param(15_000, marks=pytest.mark.long)])
def test_own_macros_of_many_fields_come_back(tmp_path: Path, count: int) -> None:
    from npulab.registers.formats.c_writing import macros_text

    table = RegisterTable.of(
        [
            {
                "block": "B",
                "offset": 4 * (n // 8),
                "register": f"R{n // 8}",
                "field": f"f{n % 8}",
                "lsb": 4 * (n % 8),
                "width": 4,
            }
            for n in range(count)
        ]
    )
    assert read(tmp_path, macros_text(table)) == table


def test_enums_of_an_own_header_are_no_registers(tmp_path: Path) -> None:
    from npulab.registers.formats.c_writing import c_text

    rows = rows_in("block,register,field,lsb,width,value\nB,STAT,code,0,8,enum:STAT")
    table = RegisterTable.of(rows, {"STAT": {0x38: "lost", 0x78: "sent", 0xB0: "got"}})
    assert read(tmp_path, c_text(table)) == table


def test_an_enum_without_names_is_none(tmp_path: Path) -> None:
    (tmp_path / "a.xml").write_text(
        '<database xmlns="http://nouveau.freedesktop.org/"><domain name="D"><enum name="E"><!-- 0 --></enum>'
        '<reg32 offset="0" name="R"><bitfield name="f" low="0" high="3" type="E"/></reg32></domain></database>'
    )
    table = read_map(tmp_path / "a.xml")
    assert not table.enums
    write_map(table, tmp_path / "a.csv")
    assert read_map(tmp_path / "a.csv") == table
    table.check()


def public() -> list[Path]:
    folder = Path(__file__).parents[3] / "shared" / "data" / "maps" / "headers"
    return sorted(folder.glob("*.[ch]")) if folder.is_dir() else []


def compared(path: Path) -> tuple[int, list[str], list[str]]:
    """How many fields another way counts, those that lie elsewhere here, and those that are
    neither here nor named as lost.
    """
    want = fields(path)
    if not want:
        return 0, [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = read_map(path)
    have = {Bits(row["offset"], row["lsb"], row["width"]) for row in table.rows}
    assert table.reading is not None
    named = {name for _, name, *_ in table.reading.lost}
    missing = [name for name, bits in want.items() if bits not in have]
    return (
        len(want),
        [name for name in missing if name not in named],
        [name for name in missing if name in named],
    )


OFTEN = (
    "gpu_drm_etnaviv_state_hi.xml.h",
    "gpu_drm_lima_lima_regs.h",
    "accel_ivpu_ivpu_hw_btrs_mtl_reg.h",
)


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.name, marks=[] if path.name in OFTEN else pytest.mark.long)
        for path in public()
    ]
    or [
        pytest.param(
            None, marks=pytest.mark.skip(reason="public headers are not beside this checkout")
        )
    ],
)
def test_public_headers_counted_by_the_preprocessor(path: Path) -> None:
    count, wrong, missing = compared(path)
    assert wrong == []
    assert 50 * len(missing) <= count


def test_a_public_header_says_what_its_makers_xml_says() -> None:
    """state_hi.xml.h is generated from state_hi.xml."""
    folder = next((path.parents[1] for path in public()), None)
    if folder is None:
        pytest.skip("public headers are not beside this checkout")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        header = read_map(folder / "headers" / "gpu_drm_etnaviv_state_hi.xml.h")
        xml = read_map(next(folder.rglob("state_hi.xml")))
    places = [
        {(row["offset"], row["lsb"], row["width"]) for row in table.rows} for table in (header, xml)
    ]
    assert places[0] == places[1]
    assert len(places[0]) == 227
