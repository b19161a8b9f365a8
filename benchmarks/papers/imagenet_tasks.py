"""The nine tasks of Vulcan's Table 1 as lists of classes of ImageNet-1K, in imagenet_tasks/.

    python -m benchmarks.papers.imagenet_tasks        # writes them again
    edgevit derive deit_base_patch16_224 --pretrained --data imagenet --classes benchmarks/imagenet_tasks/t1_25.txt ...

T1 to T3 have 25 classes each, T4 to T6 50, T7 to T9 100. The paper does not print them: the numbers are those of the
repository that it names (CGCL-codes/Vulcan, src/data/sub_task/imagenet). They count the classes from 0 in ImageNet's
order, which is that of the sorted WordNet ids. A file names a class by its WordNet id, as ImageNet's own folders do.
NuWa's tasks of these sizes are not printed either, and no lists of them were found.
"""

from __future__ import annotations

from pathlib import Path

from timm.data import ImageNetInfo

FOLDER = Path(__file__).parent / "imagenet_tasks"
TASKS = {
    "t1_25": """
        50 62 148 272 302 306 314 331 402 408 432 531 533 592 609 713 732 746 751 905 911 927 930 981 999""",
    "t2_25": """
        32 78 127 146 170 176 181 227 264 268 416 581 594 595 606 625 631 643 698 712 745 801 807 865 873""",
    "t3_25": """
        74 137 192 210 273 278 288 308 346 430 452 483 530 604 682 712 740 781 783 845 848 870 935 950 964""",
    "t4_50": """
        56 58 117 119 128 129 130 163 182 187 238 250 258 261 276 304 345 349 350 359 365 409 435 441 471
        477 497 512 523 544 553 571 613 627 636 680 690 703 706 748 753 792 793 827 870 921 936 952 960 998""",
    "t5_50": """
        12 18 45 69 76 86 87 98 170 177 189 201 204 219 236 301 302 303 322 345 353 368 377 378 381
        396 557 560 563 570 600 602 618 643 664 685 712 728 740 755 775 801 865 872 873 885 961 973 978 988""",
    "t6_50": """
        16 29 51 70 75 87 94 106 126 159 165 187 223 264 283 286 290 295 317 344 363 404 433 454 508
        509 517 546 560 600 605 623 640 650 666 675 694 696 730 772 774 780 788 805 852 900 933 941 965 975""",
    "t7_100": """
        16 22 39 42 62 68 79 86 91 111 121 124 131 169 173 195 199 246 248 249 251 256 272 274 286
        296 306 316 319 333 342 351 354 378 396 397 400 426 435 441 452 457 458 475 478 490 491 507 510 517
        527 541 554 557 567 579 584 596 601 603 612 625 626 654 667 669 674 689 691 692 697 705 715 728 747
        749 761 785 787 788 804 827 833 843 854 856 857 870 894 899 916 922 947 970 972 976 979 980 985 987""",
    "t8_100": """
        1 44 47 51 52 56 57 58 79 89 90 91 93 117 122 142 143 145 168 179 189 196 198 205 215
        221 251 265 275 276 281 287 290 291 310 311 313 317 319 320 321 322 344 354 360 396 398 404 411 437
        440 457 479 480 491 520 521 524 528 531 560 561 582 609 616 646 653 658 662 666 677 686 688 704 726
        737 744 752 765 814 818 821 833 843 851 860 873 878 892 897 901 909 911 916 932 950 951 956 985 992""",
    "t9_100": """
        9 22 30 46 48 54 59 62 67 68 80 87 99 114 126 134 160 182 185 197 202 211 224 226 233
        238 248 256 309 315 337 349 350 358 370 372 381 394 395 398 400 404 419 424 459 469 472 493 501 504
        505 516 525 548 564 586 592 605 630 635 642 647 654 673 681 700 702 728 756 765 780 788 789 796 808
        810 811 816 817 849 851 853 854 871 907 922 933 937 939 942 947 948 951 960 969 972 979 981 984 998""",
}


def lists() -> dict[str, str]:
    """Return the text of each file by its name."""
    info = ImageNetInfo()
    names = info.label_names()
    files = {}
    for task, numbers in TASKS.items():
        number, _, classes = task.removeprefix("t").partition("_")
        lines = [f"{names[i]}  # {info.index_to_description(i)}" for i in map(int, numbers.split())]
        head = f"# T{number}/{classes} of Vulcan's Table 1, on ImageNet-1K (benchmarks/imagenet_tasks.py)."
        files[f"{task}.txt"] = "\n".join([head, *lines]) + "\n"
    return files


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, text in lists().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
