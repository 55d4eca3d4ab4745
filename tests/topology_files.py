"""Small files of other tools, written by hand, and where the public ones are."""

from __future__ import annotations

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[2] / "shared" / "topodata"
NCCL_FILES = sorted([*SHARED.glob("nccl_xml/*.xml"), *SHARED.glob("nccl_oracle/*.xml")])
HWLOC_FILES = sorted([*SHARED.glob("hwloc_xml/**/*.xml"), *SHARED.glob("hwloc_linux/**/*.xml")])
SMI_FILES = sorted(SHARED.glob("smi_topo/**/*.txt"))


def need(files: list[Path]) -> None:
    """Skip where the public files are not at hand."""
    if not files:
        pytest.skip(f"no public topology files in {SHARED}")


NCCL = """<!-- two GPUs below one switch, a NIC on the other node -->
<system version="1">
  <cpu numaid="0" affinity="00000000,0000000f" arch="x86_64" vendor="AuthenticAMD"
       familyid="175" modelid="1">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="16.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x20b0"
           link_speed="16.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="80" rank="0" gdr="1">
          <nvlink target="0000:12:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x20b0"
           link_speed="16.0 GT/s PCIe" link_width="8">
        <gpu dev="1" sm="80" rank="1" gdr="1">
          <nvlink target="0000:11:00.0" count="4" tclass="0x030200"/>
        </gpu>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="00000000,000000f0" arch="x86_64" vendor="AuthenticAMD"
       familyid="175" modelid="1">
    <pci busid="0000:80:00.0" class="0x020000" vendor="0x15b3" device="0x1021">
      <nic>
        <net name="mlx5_0" dev="0" speed="200000" port="1" guid="0x1" maxconn="1" gdr="1"/>
      </nic>
    </pci>
  </cpu>
</system>
"""

HWLOC = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE topology SYSTEM "hwloc2.dtd">
<topology version="2.0">
  <object type="Machine" os_index="0" cpuset="0x0000000f" complete_cpuset="0x0000001f"
          allowed_cpuset="0x00000007" nodeset="0x00000003" complete_nodeset="0x00000003"
          allowed_nodeset="0x00000001" gp_index="1">
    <info name="Architecture" value="x86_64"/>
    <info name="HostName" value="secret-host"/>
    <object type="Package" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="2">
      <info name="CPUModel" value="Test CPU"/>
      <object type="NUMANode" os_index="0" cpuset="0x00000003" nodeset="0x00000001"
              gp_index="3" local_memory="1073741824"/>
      <object type="L3Cache" cpuset="0x00000003" nodeset="0x00000001" gp_index="4"
              cache_size="1048576" depth="3" cache_type="0">
        <object type="Core" os_index="0" cpuset="0x00000003" nodeset="0x00000001" gp_index="5">
          <object type="PU" os_index="0" cpuset="0x00000001" nodeset="0x00000001" gp_index="6"/>
          <object type="PU" os_index="1" cpuset="0x00000002" nodeset="0x00000001" gp_index="7"/>
        </object>
      </object>
      <object type="Bridge" gp_index="8" bridge_type="0-1" depth="0" bridge_pci="0000:[00-02]">
        <object type="Bridge" gp_index="9" bridge_type="1-1" depth="1" bridge_pci="0000:[01-01]"
                pci_busid="0000:00:01.0" pci_type="0604 [8086:352a] [0000:0000] 04"
                pci_link_speed="31.507692">
          <object type="PCIDev" gp_index="10" pci_busid="0000:01:00.0"
                  pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="31.507692">
            <object type="OSDev" gp_index="11" name="nvml0" osdev_type="5">
              <info name="GPUModel" value="NVIDIA H100"/>
              <info name="NVIDIASerial" value="0321019030775"/>
              <info name="NVIDIAUUID" value="GPU-1"/>
            </object>
          </object>
        </object>
      </object>
    </object>
    <object type="Package" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="12">
      <object type="NUMANode" os_index="1" cpuset="0x0000000c" nodeset="0x00000002"
              gp_index="13" local_memory="1073741824"/>
      <object type="Core" os_index="1" cpuset="0x0000000c" nodeset="0x00000002" gp_index="14">
        <object type="PU" os_index="2" cpuset="0x00000004" nodeset="0x00000002" gp_index="15"/>
        <object type="PU" os_index="3" cpuset="0x00000008" nodeset="0x00000002" gp_index="16"/>
      </object>
      <object type="Bridge" gp_index="17" bridge_type="0-1" depth="0" bridge_pci="0000:[80-81]">
        <object type="PCIDev" gp_index="18" pci_busid="0000:80:00.0"
                pci_type="0207 [15b3:1021] [15b3:0053] 00" pci_link_speed="0.000000">
          <object type="OSDev" gp_index="19" name="ib0" osdev_type="2">
            <info name="Address" value="00:11:22:33:44:55"/>
          </object>
          <object type="OSDev" gp_index="20" name="mlx5_0" osdev_type="3">
            <info name="NodeGUID" value="0002:c903:0001:0002"/>
            <info name="Port1State" value="4"/>
            <info name="Port2State" value="1"/>
          </object>
        </object>
      </object>
    </object>
  </object>
  <distances2 type="NUMANode" nbobjs="2" kind="5" name="NUMALatency" indexing="os">
    <indexes length="4">0 1 </indexes>
    <u64values length="12">10 21 21 10 </u64values>
  </distances2>
</topology>
"""

SMI = (
    "\tGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    "GPU0\t X \tNV12\tPXB\t0-23\t0\t\tN/A\n"
    "GPU1\tNV12\t X \tSYS\t24-47\t1\t\tN/A\n"
    "NIC0\tPXB\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n\nNIC Legend:\n\n  NIC0: mlx5_0\n"
)
