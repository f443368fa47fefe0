//! From classic BPF to eBPF.
//!
//! A classic program reads a packet by loads at offsets; a load beyond the packet ends the program with "no match". So
//! it does here, except for a load beyond the bytes that the kernel's side holds of a longer packet: the result is then
//! unknown, and user space decides.
//!
//! Registers: r1 points to the held bytes, r2 is their number, r3 the packet's length, r0 is A, r4 is X, r5 is scratch;
//! the memory M is on the stack.

use expressway_xbpf::CaptureFilter;

use super::library::Instruction;

/// Classic instructions' fields (`linux/filter.h`).
mod classic {
    pub(super) const LD: u16 = 0;
    pub(super) const LDX: u16 = 1;
    pub(super) const ST: u16 = 2;
    pub(super) const STX: u16 = 3;
    pub(super) const ALU: u16 = 4;
    pub(super) const JMP: u16 = 5;
    pub(super) const RET: u16 = 6;
    pub(super) const MISC: u16 = 7;
    pub(super) const W: u16 = 0x00;
    pub(super) const H: u16 = 0x08;
    pub(super) const B: u16 = 0x10;
    pub(super) const IMM: u16 = 0x00;
    pub(super) const ABS: u16 = 0x20;
    pub(super) const IND: u16 = 0x40;
    pub(super) const MEM: u16 = 0x60;
    pub(super) const LEN: u16 = 0x80;
    pub(super) const MSH: u16 = 0xa0;
    pub(super) const X: u16 = 0x08;
    pub(super) const RET_A: u16 = 0x10;
    pub(super) const TXA: u16 = 0x80;
}

/// eBPF's opcodes (`linux/bpf.h`).
mod op {
    pub(super) const MOV32_K: u8 = 0xb4;
    pub(super) const MOV32_X: u8 = 0xbc;
    pub(super) const ADD_K: u8 = 0x07;
    pub(super) const ADD_X: u8 = 0x0f;
    pub(super) const AND32_K: u8 = 0x54;
    pub(super) const LSH32_K: u8 = 0x64;
    pub(super) const BIG_ENDIAN: u8 = 0xdc;
    pub(super) const LOAD_W: u8 = 0x61;
    pub(super) const LOAD_H: u8 = 0x69;
    pub(super) const LOAD_B: u8 = 0x71;
    pub(super) const STORE_W: u8 = 0x63;
    pub(super) const STORE_ZERO: u8 = 0x62;
    pub(super) const JA: u8 = 0x05;
    pub(super) const JGT_K: u8 = 0x25;
    pub(super) const JGT_X: u8 = 0x2d;
    pub(super) const JEQ32_K: u8 = 0x16;
    pub(super) const JGT32_K: u8 = 0x26;
    pub(super) const EXIT: u8 = 0x95;
    pub(super) const ALU32: u8 = 0x04;
    pub(super) const JMP32: u8 = 0x06;
}

const A: u8 = 0;
const HELD: u8 = 1;
const HELD_LENGTH: u8 = 2;
const LENGTH: u8 = 3;
const X: u8 = 4;
const SCRATCH: u8 = 5;
const STACK: u8 = 10;

/// Words of M (`BPF_MEMWORDS`).
const MEMORY: u32 = 16;

/// Where a jump goes.
#[derive(Clone, Copy)]
enum Target {
    /// A classic instruction.
    Classic(usize),
    /// The packet does not match.
    No,
    /// It does.
    Yes,
    /// r5 octets are not all held: no match if the packet does not have them.
    Short,
}

struct Translation {
    code: Vec<[u8; 8]>,
    jumps: Vec<(usize, Target)>,
    /// Where each classic instruction begins.
    starts: Vec<usize>,
    needed: u32,
    /// The most that X can be, if that is known.
    most_index: Option<u32>,
}

fn instruction(code: u8, to: u8, from: u8, offset: i16, value: u32) -> [u8; 8] {
    let [a, b] = offset.to_ne_bytes();
    let [c, d, e, f] = value.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") { from << 4 | to } else { to << 4 | from };
    [code, registers, a, b, c, d, e, f]
}

/// Which instructions can be come to: the verifier refuses others. Classic jumps go forward only.
fn reached(program: &[Instruction]) -> Vec<bool> {
    let mut reached = vec![false; program.len()];
    if let Some(first) = reached.first_mut() {
        *first = true;
    }
    for (at, classic) in program.iter().enumerate() {
        if !reached[at] {
            continue;
        }
        let mut reach = |skip: usize| {
            if let Some(next) = reached.get_mut(at.saturating_add(1).saturating_add(skip)) {
                *next = true;
            }
        };
        match classic.code & 7 {
            classic::RET => {}
            classic::JMP if classic.code & 0xf0 == 0 => reach(classic.k as usize),
            classic::JMP => {
                reach(usize::from(classic.jt));
                reach(usize::from(classic.jf));
            }
            _ if ends(classic) => {}
            _ => reach(0),
        }
    }
    reached
}

/// Whether an instruction that computes or loads never comes to the next one.
fn ends(classic: &Instruction) -> bool {
    let Instruction { code, k, .. } = *classic;
    let fixed = code & 0xe0 == classic::ABS || code & 0xe7 == classic::MSH | classic::LDX;
    match code & 7 {
        // A division by zero.
        classic::ALU => matches!(code & 0xf0, 0x30 | 0x90) && code & classic::X == 0 && k == 0,
        classic::LD | classic::LDX => fixed && within(k, size(code)).is_none(),
        _ => false,
    }
}

/// The most that X becomes in a program of these instructions, if they set it to nothing but numbers and lengths of IPv4
/// headers.
fn most_index<'a>(program: impl Iterator<Item = &'a Instruction>) -> Option<u32> {
    /// The most that `BPF_MSH` gives.
    const LONGEST_HEADER: u32 = 4 * 0xf;
    let mut most = 0;
    for Instruction { code, k, .. } in program {
        match (code & 7, code & 0xe0) {
            (classic::LDX, classic::MSH) => most = most.max(LONGEST_HEADER),
            (classic::LDX, classic::IMM) => most = most.max(*k),
            (classic::LDX, _) => return None,
            (classic::MISC, _) if code & 0xf8 != classic::TXA => return None,
            _ => {}
        }
    }
    Some(most)
}

/// Octets of a load from the packet; an index is one octet.
const fn size(code: u16) -> u8 {
    match code & 0x1f {
        classic::W => 4,
        classic::H => 2,
        _ => 1,
    }
}

/// The end of a load at a fixed offset, if it can lie in what is held.
fn within(k: u32, size: u8) -> Option<u32> {
    k.checked_add(u32::from(size)).filter(|end| *end as usize <= CaptureFilter::HEAD)
}

/// The kernel's form of a classic program, or what of it has none.
pub(super) fn translate(program: &[Instruction]) -> Result<CaptureFilter, String> {
    let mut made = Translation {
        code: Vec::with_capacity(program.len() * 4),
        jumps: Vec::new(),
        starts: Vec::with_capacity(program.len()),
        needed: 0,
        most_index: None,
    };
    let goes_back = |classic: &Instruction| classic.code == classic::JMP && classic.k > i32::MAX as u32;
    if program.iter().any(goes_back) {
        return Err("it loops, as `protochain` does".to_owned());
    }
    made.begin(program);
    let reached = reached(program);
    made.most_index =
        most_index(program.iter().zip(&reached).filter(|(_, reached)| **reached).map(|(one, _)| one));
    for (at, classic) in program.iter().enumerate() {
        made.starts.push(made.code.len());
        if !reached[at] {
            continue;
        }
        made.one(at, classic).ok_or_else(|| format!("instruction {at} ({:#x}) is unknown", classic.code))?;
    }
    made.end()
}

impl Translation {
    fn put(&mut self, code: u8, to: u8, from: u8, offset: i16, value: u32) {
        self.code.push(instruction(code, to, from, offset, value));
    }

    fn jump(&mut self, code: u8, to: u8, from: u8, value: u32, target: Target) {
        self.jumps.push((self.code.len(), target));
        self.put(code, to, from, 0, value);
    }

    fn begin(&mut self, program: &[Instruction]) {
        // The upper halves of 32-bit arguments are anything.
        self.put(op::MOV32_X, HELD_LENGTH, HELD_LENGTH, 0, 0);
        self.put(op::MOV32_X, LENGTH, LENGTH, 0, 0);
        self.put(op::MOV32_K, A, 0, 0, 0);
        self.put(op::MOV32_K, X, 0, 0, 0);
        // The verifier of older kernels refuses to read what was never written.
        for slot in 0..MEMORY {
            let reads = |classic: &Instruction| {
                matches!(classic.code & 7, classic::LD | classic::LDX)
                    && classic.code & 0xe0 == classic::MEM
                    && classic.k == slot
            };
            if program.iter().any(reads) {
                self.put(op::STORE_ZERO, STACK, 0, place(slot), 0);
            }
        }
    }

    fn one(&mut self, at: usize, classic: &Instruction) -> Option<()> {
        let Instruction { code, k, .. } = *classic;
        match code & 7 {
            classic::LD => self.load(code, k),
            classic::LDX => self.load_index(code, k),
            classic::ST | classic::STX if code & !7 == 0 && k < MEMORY => {
                let from = if code & 7 == classic::ST { A } else { X };
                self.put(op::STORE_W, STACK, from, place(k), 0);
                Some(())
            }
            classic::ALU => self.compute(code, k),
            classic::JMP => self.branch(at, classic),
            classic::RET => {
                match code & 0x18 {
                    classic::RET_A => {
                        self.jump(op::JEQ32_K, A, 0, 0, Target::No);
                        self.jump(op::JA, 0, 0, 0, Target::Yes);
                    }
                    _ if k == 0 => self.jump(op::JA, 0, 0, 0, Target::No),
                    _ => self.jump(op::JA, 0, 0, 0, Target::Yes),
                }
                Some(())
            }
            classic::MISC if code & 0xf8 == classic::TXA => {
                self.put(op::MOV32_X, A, X, 0, 0);
                Some(())
            }
            classic::MISC if code & 0xf8 == 0 => {
                self.put(op::MOV32_X, X, A, 0, 0);
                Some(())
            }
            _ => None,
        }
    }

    fn load(&mut self, code: u16, k: u32) -> Option<()> {
        let (load, size) = match code & 0x18 {
            classic::W => (op::LOAD_W, 4u8),
            classic::H => (op::LOAD_H, 2),
            classic::B => (op::LOAD_B, 1),
            _ => return None,
        };
        match code & 0xe0 {
            classic::IMM => self.put(op::MOV32_K, A, 0, 0, k),
            classic::MEM if k < MEMORY => self.put(op::LOAD_W, A, STACK, place(k), 0),
            classic::LEN => self.put(op::MOV32_X, A, LENGTH, 0, 0),
            classic::ABS => {
                self.packet(load, A, size, k);
            }
            classic::IND => {
                let end = self.most_index.and_then(|most| most.checked_add(k)?.checked_add(u32::from(size)));
                self.need(end.unwrap_or(u32::MAX).min(CaptureFilter::HEAD as u32));
                // 64 bits: X + k does not wrap.
                self.put(op::MOV32_K, SCRATCH, 0, 0, k);
                self.put(op::ADD_X, SCRATCH, X, 0, 0);
                self.put(op::ADD_K, SCRATCH, 0, 0, u32::from(size));
                self.jump(op::JGT_K, SCRATCH, 0, CaptureFilter::HEAD as u32, Target::Short);
                self.jump(op::JGT_X, SCRATCH, HELD_LENGTH, 0, Target::Short);
                self.put(op::ADD_X, SCRATCH, HELD, 0, 0);
                self.put(load, A, SCRATCH, -i16::from(size), 0);
                self.big_endian(A, size);
            }
            _ => return None,
        }
        Some(())
    }

    fn load_index(&mut self, code: u16, k: u32) -> Option<()> {
        match code & 0xe0 {
            classic::IMM => self.put(op::MOV32_K, X, 0, 0, k),
            classic::MEM if k < MEMORY => self.put(op::LOAD_W, X, STACK, place(k), 0),
            classic::LEN => self.put(op::MOV32_X, X, LENGTH, 0, 0),
            classic::MSH => {
                if self.packet(op::LOAD_B, X, 1, k) {
                    self.put(op::AND32_K, X, 0, 0, 0xf);
                    self.put(op::LSH32_K, X, 0, 0, 2);
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// A load of `size` octets at `k`. False if they lie beyond what is held, so that nothing comes after it.
    fn packet(&mut self, load: u8, to: u8, size: u8, k: u32) -> bool {
        match within(k, size) {
            Some(end) => {
                self.need(end);
                self.put(op::MOV32_K, SCRATCH, 0, 0, end);
                self.jump(op::JGT_X, SCRATCH, HELD_LENGTH, 0, Target::Short);
                self.put(load, to, HELD, k as i16, 0);
                self.big_endian(to, size);
                true
            }
            None => {
                self.need(CaptureFilter::HEAD as u32);
                self.put(op::MOV32_K, SCRATCH, 0, 0, k);
                self.put(op::ADD_K, SCRATCH, 0, 0, u32::from(size));
                self.jump(op::JA, 0, 0, 0, Target::Short);
                false
            }
        }
    }

    fn need(&mut self, octets: u32) {
        self.needed = self.needed.max(octets);
    }

    fn big_endian(&mut self, register: u8, size: u8) {
        if size > 1 {
            self.put(op::BIG_ENDIAN, register, 0, 0, u32::from(size) * 8);
        }
    }

    fn compute(&mut self, code: u16, k: u32) -> Option<()> {
        /// Operations whose operand has limits.
        const DIVIDE: u16 = 0x30;
        const LEFT: u16 = 0x60;
        const RIGHT: u16 = 0x70;
        const NEGATE: u16 = 0x80;
        const MODULO: u16 = 0x90;
        let operation = code & 0xf0;
        if operation > 0xa0 {
            return None;
        }
        // Both have the same numbers for operations and operands.
        let ebpf = op::ALU32 | operation as u8 | (code & classic::X) as u8;
        let by_register = code & classic::X != 0;
        match operation {
            NEGATE => self.put(op::ALU32 | NEGATE as u8, A, 0, 0, 0),
            DIVIDE | MODULO if by_register => {
                self.jump(op::JEQ32_K, X, 0, 0, Target::No);
                self.put(ebpf, A, X, 0, 0);
            }
            DIVIDE | MODULO if k == 0 => self.jump(op::JA, 0, 0, 0, Target::No),
            // Shifted out; eBPF would take the number modulo 32.
            LEFT | RIGHT if by_register => {
                self.put(op::JGT32_K, X, 0, 2, 31);
                self.put(ebpf, A, X, 0, 0);
                self.put(op::JA, 0, 0, 1, 0);
                self.put(op::MOV32_K, A, 0, 0, 0);
            }
            LEFT | RIGHT if k > 31 => self.put(op::MOV32_K, A, 0, 0, 0),
            _ if by_register => self.put(ebpf, A, X, 0, 0),
            _ => self.put(ebpf, A, 0, 0, k),
        }
        Some(())
    }

    fn branch(&mut self, at: usize, classic: &Instruction) -> Option<()> {
        let operation = classic.code & 0xf0;
        let skip = |count: usize| Target::Classic(at.saturating_add(1).saturating_add(count));
        match operation {
            0 => self.jump(op::JA, 0, 0, 0, skip(classic.k as usize)),
            // Equal, greater, greater or equal, bits set: the same numbers in both.
            0x10..=0x40 => {
                let ebpf = op::JMP32 | operation as u8 | (classic.code & classic::X) as u8;
                let (from, value) = if classic.code & classic::X != 0 { (X, 0) } else { (0, classic.k) };
                self.jump(ebpf, A, from, value, skip(usize::from(classic.jt)));
                if classic.jf != 0 {
                    self.jump(op::JA, 0, 0, 0, skip(usize::from(classic.jf)));
                }
            }
            _ => return None,
        }
        Some(())
    }

    /// The ends, and where jumps go.
    fn end(mut self) -> Result<CaptureFilter, String> {
        // Only those that are jumped to: the verifier refuses others.
        let short = self.code.len();
        if self.is_target(|target| matches!(target, Target::Short)) {
            self.jump(op::JGT_X, SCRATCH, LENGTH, 0, Target::No);
            self.put(op::MOV32_K, A, 0, 0, 2);
            self.put(op::EXIT, 0, 0, 0, 0);
        }
        let no = self.code.len();
        if self.is_target(|target| matches!(target, Target::No)) {
            self.put(op::MOV32_K, A, 0, 0, 0);
            self.put(op::EXIT, 0, 0, 0, 0);
        }
        let yes = self.code.len();
        if self.is_target(|target| matches!(target, Target::Yes)) {
            self.put(op::MOV32_K, A, 0, 0, 1);
            self.put(op::EXIT, 0, 0, 0, 0);
        }
        if self.code.len() > CaptureFilter::ROOM {
            return Err(format!("{} instructions, {} have room", self.code.len(), CaptureFilter::ROOM));
        }
        for (at, target) in std::mem::take(&mut self.jumps) {
            let to = match target {
                Target::Classic(index) => *self.starts.get(index).ok_or("it jumps out of itself")?,
                Target::No => no,
                Target::Yes => yes,
                Target::Short => short,
            };
            let offset = to as i64 - at as i64 - 1;
            let offset = i16::try_from(offset).map_err(|_| "a jump is too long".to_owned())?;
            let [a, b] = offset.to_ne_bytes();
            [self.code[at][2], self.code[at][3]] = [a, b];
        }
        Ok(CaptureFilter { code: self.code, needed: self.needed })
    }

    fn is_target(&self, which: impl Fn(&Target) -> bool) -> bool {
        self.jumps.iter().any(|(_, target)| which(target))
    }
}

/// Where a word of M lies on the stack.
fn place(slot: u32) -> i16 {
    -4 * (slot as i16 + 1)
}
